// What the library says of itself.

// The arguments for which it was built (csrc/build.py).
extern "C" __attribute__((visibility("default"))) unsigned gqc_interface() {
    return GQC_INTERFACE;
}

// Which of the compiled instruction sets this processor and operating system can run.
extern "C" __attribute__((visibility("default"))) const char* gqc_isas() {
#if defined(__x86_64__)
    // F16C is older than AVX2: each processor with this one has it.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vnni");
        return avx512 ? "portable avx2 avx512" : "portable avx2";
    }
#endif
    return "portable";
}
