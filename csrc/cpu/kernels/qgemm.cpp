// Products of int8 matrices with exact integer sums: out = float(sum) * (a_scale * b_scale) + bias, and the largest
// magnitude of out for the quantization that follows.

#include <type_traits>

#include "cpu/gemm/contraction.h"
#include "cpu/gemm/rows.h"

namespace gqc::GQC_ISA {

// a: [m, k], or [k, m] where trans_a; b: [k, n], or [n, k] where trans_b; int8, or 4-bit values two a byte where
// a_packed or b_packed; a_scale, b_scale: one float; bias: n floats or null; out: [m, n] floats, or bfloat16 where
// is_bf16; absmax: one float.
GQC_KERNEL(qgemm)(int64_t threads, const void* a, const float* a_scale, int64_t a_packed, const void* b,
                  const float* b_scale, int64_t b_packed, int64_t m, int64_t n, int64_t k, int64_t trans_a,
                  int64_t trans_b, const float* bias, int64_t is_bf16, void* out, float* absmax) {
    const Shape shape{m, n, k};
    const Factor left{{a, trans_a ? k : m, trans_a ? m : k, a_packed != 0}, !trans_a};
    const Factor right{{b, trans_b ? n : k, trans_b ? k : n, b_packed != 0}, trans_b != 0};
    Error error = nullptr;
    typed(out, is_bf16, [&](auto* values) {
        const Epilogue<std::remove_pointer_t<decltype(values)>> epilogue{*a_scale * *b_scale, bias, values, n, absmax};
        error = !trans_a && k <= kExactProducts ? gemm_by_rows(threads, shape, left.matrix, right, epilogue)
                                                : gemm_by_contraction(threads, shape, left, right, epilogue);
    });
    return error;
}

}  // namespace gqc::GQC_ISA
