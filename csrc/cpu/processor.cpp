#if defined(__x86_64__) && defined(__linux__)

#    include "cpu/processor.h"

#    include <cpuid.h>
#    include <sys/syscall.h>
#    include <unistd.h>

namespace processor {
namespace {

struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;

    // Zeros where the processor has no such leaf.
    Leaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
};

}  // namespace

bool runs_avx2() {
    // F16C is older than AVX2: each processor with this one has it.
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool runs_avx_vnni() {
    constexpr unsigned kAvxVnni = 1u << 4;
    return runs_avx2() && Leaf(7, 0).a >= 1 && (Leaf(7, 1).a & kAvxVnni);
}

bool runs_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

// Linux lets a process use tiles only after it has asked once.
bool may_use_tiles() {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kOsxsave = 1u << 27, kTileState = 3u << 17;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    if (!(Leaf(1, 0).c & kOsxsave) || (Leaf(7, 0).d & (kTile | kInt8)) != (kTile | kInt8)) return false;
    unsigned states, upper;
    __asm__("xgetbv" : "=a"(states), "=d"(upper) : "c"(0));
    if ((states & kTileState) != kTileState) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool multiplies_bfloat16() {
    constexpr unsigned kBfloat16 = 1u << 22;
    return Leaf(7, 0).d & kBfloat16;
}

}  // namespace processor

#endif
