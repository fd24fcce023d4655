// Products of int8 matrices with exact integer sums: out = float(sum) * (a_scale * b_scale) + bias, and the largest
// magnitude of out for the quantization that follows.

#include <type_traits>

#include "cpu/gemm/contraction.h"
#include "cpu/gemm/rows.h"

namespace gqc::GQC_ISA {

// a: int8 [m, k], or [k, m] where trans_a; b: int8 [k, n], or [n, k] where trans_b; a_scale, b_scale: one float; bias:
// n floats or null; out: [m, n] floats, or bfloat16 where is_bf16; absmax: one float.
GQC_KERNEL(qgemm)(int64_t threads, const int8_t* a, const float* a_scale, const int8_t* b, const float* b_scale,
                  int64_t m, int64_t n, int64_t k, int64_t trans_a, int64_t trans_b, const float* bias, int64_t is_bf16,
                  void* out, float* absmax) {
    const Shape shape{m, n, k};
    const Operand left{a, trans_a ? m : k, !trans_a}, right{b, trans_b ? k : n, trans_b != 0};
    Error error = nullptr;
    typed(out, is_bf16, [&](auto* values) {
        const Epilogue<std::remove_pointer_t<decltype(values)>> epilogue{*a_scale * *b_scale, bias, values, n, absmax};
        error = !trans_a && k <= kExactProducts ? gemm_by_rows(threads, shape, a, right, epilogue)
                                                : gemm_by_contraction(threads, shape, left, right, epilogue);
    });
    return error;
}

}  // namespace gqc::GQC_ISA
