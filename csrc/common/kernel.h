// Adding a kernel
// ---------------
// 1. Put it in csrc/cpu/kernels/<family>.cpp. Each such file is compiled once per instruction set of csrc/build.py,
//    with GQC_ISA set to the set's name and with its compiler flags; test __AVX2__ or __AVX512F__ for intrinsics.
//
//        #include "common/kernel.h"
//
//        namespace gqc::GQC_ISA {
//        namespace {
//        ... helpers ...
//        }  // namespace
//
//        GQC_KERNEL(row_sum)(int64_t threads, const float* x, int64_t rows, int64_t columns, float* out) {
//        #pragma omp parallel for num_threads(team(threads, rows * columns))
//          ...
//          return nullptr;
//        }
//        }  // namespace gqc::GQC_ISA
//
// 2. Declare its arguments after `threads` in SIGNATURES of runtime/native.py and call it:
//    kernels.run(x, "row_sum", pointer(x, torch.float32), rows, columns, pointer(out, torch.float32)).
//
// The macro exports gqc_row_sum_<isa>; Python picks the symbol of the instruction set in use. That is all of the
// dispatch.
//
// A kernel returns nullptr, or a string literal that says why it refused. Helpers stand in namespace gqc::GQC_ISA, also
// those of headers: an inline function outside it would be merged by the linker into one copy, compiled for whichever
// instruction set came first. For the same reason use no std:: containers; scratch memory is common/buffer.h.
#pragma once

#include <cstdint>

#define GQC_JOIN2(a, b, c) a##b##_##c
#define GQC_JOIN(a, b, c) GQC_JOIN2(a, b, c)

#define GQC_KERNEL(name) extern "C" __attribute__((visibility("default"))) const char* GQC_JOIN(gqc_, name, GQC_ISA)

namespace gqc::GQC_ISA {

using Error = const char*;
constexpr Error kOutOfMemory = "out of memory for scratch space";

// Threads for `work` elementary steps: a team costs microseconds, so each thread gets at least `grain` of them.
inline int team(int64_t threads, int64_t work, int64_t grain = 32768) {
    const int64_t useful = work / grain;
    return static_cast<int>(useful < 1 ? 1 : useful < threads ? useful : threads);
}

}  // namespace gqc::GQC_ISA
