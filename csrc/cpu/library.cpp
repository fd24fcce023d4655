// What the library says of itself.

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__) && defined(__linux__)
#    include <cpuid.h>
#    include <sys/syscall.h>
#    include <unistd.h>
#endif

// The arguments for which it was built (csrc/build.py).
extern "C" __attribute__((visibility("default"))) unsigned gqc_interface() {
    return GQC_INTERFACE;
}

#if defined(__x86_64__) && defined(__linux__)
#    define GQC_DECLARE_QGEMM(isa)                                                                                     \
        extern "C" __attribute__((weak)) const char* gqc_qgemm_##isa(                                                  \
            int64_t threads, const void* a, const float* a_scale, int64_t a_packed, const void* b,                     \
            const float* b_scale, int64_t b_packed, int64_t m, int64_t n, int64_t k, int64_t trans_a, int64_t trans_b, \
            const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out, float* absmax,          \
            uint8_t* positive)
extern "C" __attribute__((weak))
const char* gqc_mm_amx(int64_t threads, const void* a, const void* b, int64_t m, int64_t n, int64_t k, int64_t trans_a,
                       int64_t trans_b, const float* factors, int64_t narrow_a, int64_t narrow_b, int64_t bf16x3,
                       float* out);
GQC_DECLARE_QGEMM(portable);
GQC_DECLARE_QGEMM(avx2);
GQC_DECLARE_QGEMM(avx512);
GQC_DECLARE_QGEMM(amx);

namespace {

// Linux lets a process use tiles only after it has asked once.
bool may_use_tiles() {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kOsxsave = 1u << 27, kTileState = 3u << 17;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kTile | kInt8)) != (kTile | kInt8)) return false;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    if ((a & kTileState) != kTileState) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Some processors and virtual machines that claim integer products have multiplied wrongly.
template <typename Kernel>
bool is_right(Kernel qgemm) {
    constexpr int64_t kM = 37, kN = 35, kK = 70;
    static int8_t a[kM * kK], b[kK * kN];
    uint32_t random = 1;
    for (int8_t* x : {a, b})
        for (int64_t i = 0; i < (x == a ? kM : kN) * kK; ++i) {
            random = random * 1664525u + 1013904223u;
            x[i] = static_cast<int8_t>(static_cast<int32_t>(random >> 8) % 255 - 127);
        }
    const float scale = 1;
    for (const int64_t transposed : {0, 1}) {
        float got[kM * kN], want[kM * kN], absmax;
        const auto multiply = [&](auto kernel, float* out) {
            return kernel(1, a, &scale, 0, b, &scale, 0, kM, kN, kK, transposed, transposed, nullptr, nullptr, 0, 0,
                          out, &absmax, nullptr);
        };
        if (multiply(qgemm, got) || multiply(gqc_qgemm_portable, want)) return false;
        if (std::memcmp(got, want, sizeof got) != 0) return false;
    }
    return true;
}

// Likewise of products of bfloat16, which no other kernel computes.
bool multiplies_bfloat16() {
    constexpr unsigned kBfloat16 = 1u << 22;
    constexpr int64_t kM = 37, kN = 35, kK = 70;
    constexpr double kMostError = 1. / (1 << 14);
    unsigned registers[4];
    if (!__get_cpuid_count(7, 0, &registers[0], &registers[1], &registers[2], &registers[3])) return false;
    if (!(registers[3] & kBfloat16) || gqc_mm_amx == nullptr) return false;
    static float a[kM * kK], b[kK * kN];
    uint32_t random = 1;
    for (float* x : {a, b})
        for (int64_t i = 0; i < (x == a ? kM : kN) * kK; ++i) {
            random = random * 1664525u + 1013904223u;
            x[i] = static_cast<float>(static_cast<int32_t>(random)) / (1u << 31);
        }
    for (const bool contracts_rows : {false, true}) {
        float got[kM * kN];
        if (gqc_mm_amx(1, a, b, kM, kN, kK, contracts_rows, !contracts_rows, nullptr, 0, 0, 1, got)) return false;
        for (int64_t i = 0; i < kM; ++i)
            for (int64_t j = 0; j < kN; ++j) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < kK; ++k) {
                    const double left = contracts_rows ? a[k * kM + i] : a[i * kK + k];
                    const double product = left * (contracts_rows ? b[k * kN + j] : b[j * kK + k]);
                    sum += product;
                    size += product < 0 ? -product : product;
                }
                const double error = got[i * kN + j] - sum;
                if (!(error <= kMostError * size && -error <= kMostError * size)) return false;
            }
    }
    return true;
}

// Which of the compiled instruction sets this processor and operating system run, and multiply rightly with.
const char* usable_isas() {
    // F16C is older than AVX2: each processor with this one has it.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "portable";
    if (!is_right(gqc_qgemm_avx2)) return "portable";
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    if (!avx512 || !is_right(gqc_qgemm_avx512)) return "portable avx2";
    const bool amx = gqc_qgemm_amx != nullptr && may_use_tiles() && is_right(gqc_qgemm_amx);
    return amx ? "portable avx2 avx512 amx" : "portable avx2 avx512";
}

}  // namespace
#else
namespace {

const char* usable_isas() {
    return "portable";
}

bool multiplies_bfloat16() {
    return false;
}

}  // namespace
#endif

extern "C" __attribute__((visibility("default"))) const char* gqc_isas() {
    static const char* const found = usable_isas();
    return found;
}

// Call it only where gqc_isas names amx.
extern "C" __attribute__((visibility("default"))) int gqc_multiplies_bf16x3() {
    static const bool found = multiplies_bfloat16();
    return found;
}
