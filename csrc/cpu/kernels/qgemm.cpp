// Products of int8 matrices with exact integer sums. What follows the sums, each step rounded to float32:
// y = float(sum) * (a_scale * b_scale); y + bias[n]; y * row_scale[m]; ReLU. At last y is rounded to `dtype`.

#include <type_traits>

#include "cpu/gemm/output.h"
#include "cpu/gemm/product.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Pointer>
using Element = std::remove_const_t<std::remove_pointer_t<Pointer>>;

template <typename T>
void mask_row(const T* __restrict grad, int64_t width, const uint8_t* __restrict positive, T* __restrict out) {
    for (int64_t j = 0; j < width; ++j) out[j] = positive[j / 8] >> j % 8 & 1 ? grad[j] : T{};
}

}  // namespace

// a: [m, k], or [k, m] where trans_a; b: [k, n], or [n, k] where trans_b; int8, or 4-bit values two a byte where
// a_packed or b_packed; a_scale, b_scale: one float; bias: n floats or null; row_scale: m floats or null; out: [m, n]
// of `dtype`; absmax: one float; positive: [m, (n + 7) / 8] bytes, bit j % 8 of byte j / 8 of a row set where out is
// not <= 0, or null.
GQC_KERNEL(qgemm)(int64_t threads, const void* a, const float* a_scale, int64_t a_packed, const void* b,
                  const float* b_scale, int64_t b_packed, int64_t m, int64_t n, int64_t k, int64_t trans_a,
                  int64_t trans_b, const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out,
                  float* absmax, uint8_t* positive) {
    const Finish finish{a_scale, b_scale, bias, row_scale, relu != 0};
    const Product product(threads, {m, n, k}, trans_a != 0, b, b_packed != 0, trans_b != 0, finish);
    if (!product.ok()) return kOutOfMemory;
    if (!product.by_rows()) {
        if (const Error error = product.contract_with(a, a_packed != 0)) return error;
    }
    uint32_t largest = 0;
    const StoredRows rows{product.left(a, a_packed != 0)};
    const FloatOutput output{out, dtype, n, {positive, n}, is_streamed(m * n * bytes_of_dtype(dtype))};
    const Error error = product.write(rows, output, &largest);
    *absmax = rounded_largest(largest, dtype);
    return error;
}

// As qgemm of int8 matrices, but q: [m, n] int8 and scale: one float are what quantize makes of out; seed: two int64,
// or null to round to nearest. The values are never in memory: a first product finds their largest magnitude, a second
// one rounds them.
GQC_KERNEL(qgemm_int8)(int64_t threads, const int8_t* a, const float* a_scale, const int8_t* b, const float* b_scale,
                       int64_t m, int64_t n, int64_t k, int64_t trans_a, int64_t trans_b, const float* bias,
                       const float* row_scale, int64_t relu, const int64_t* seed, int64_t node, int64_t bits,
                       int64_t stochastic, int64_t dtype, int8_t* q, float* scale, uint8_t* positive) {
    const Finish finish{a_scale, b_scale, bias, row_scale, relu != 0};
    const Product product(threads, {m, n, k}, trans_a != 0, b, false, trans_b != 0, finish);
    if (!product.ok()) return kOutOfMemory;
    if (!product.by_rows()) {
        if (const Error error = product.contract_with(a, false)) return error;
    }
    const StoredRows rows{product.left(a, false)};
    uint32_t largest = 0;
    if (const Error error = product.write(rows, LargestOnly{}, &largest)) return error;
    const Rounding rounding(seed, node, bits, stochastic != 0, rounded_largest(largest, dtype), scale);
    return product.write(rows, Int8Output{q, dtype, n, rounding, {positive, n}, is_streamed(m * n)});
}

// x: [m, k] of x_dtype; absmax: one float, at least the largest |x|, or null to look for it; q: [m, k] int8 and scale:
// one float are what quantize makes of x. The rest is as in qgemm, with q in the place of a.
GQC_KERNEL(quantize_qgemm)(int64_t threads, const void* x, int64_t x_dtype, const float* absmax, const int64_t* seed,
                           int64_t node, int64_t bits, int64_t stochastic, int8_t* q, float* scale, const int8_t* b,
                           const float* b_scale, int64_t m, int64_t n, int64_t k, int64_t trans_b, const float* bias,
                           const float* row_scale, int64_t relu, int64_t dtype, void* out, float* out_absmax,
                           uint8_t* positive) {
    const Finish finish{scale, b_scale, bias, row_scale, relu != 0};
    const Product product(threads, {m, n, k}, false, b, false, trans_b != 0, finish);
    if (!product.ok()) return kOutOfMemory;
    float found = 0;
    typed(x, x_dtype, [&](auto* values) { found = absmax ? *absmax : GQC_ISA::absmax(threads, values, m * k); });
    const QuantizedRows rows{x, x_dtype, q, k, {seed, node, bits, stochastic != 0, found, scale}, is_streamed(m * k)};
    Error error = nullptr;
    if (!product.by_rows()) {
        typed(x, x_dtype, [&](auto* values) { rows.rounding.apply(values, 0, m * k, q); });
        error = product.contract_with(q, false);
    }
    if (error) return error;
    uint32_t largest = 0;
    const FloatOutput output{out, dtype, n, {positive, n}, is_streamed(m * n * bytes_of_dtype(dtype))};
    error = product.write(rows, output, &largest);
    *out_absmax = rounded_largest(largest, dtype);
    return error;
}

// out = grad where a bit of `positive` is set, as qgemm writes them, else 0; grad, out: [rows, width] of `dtype`.
GQC_KERNEL(relu_backward)(int64_t threads, const void* grad, int64_t dtype, int64_t rows, int64_t width,
                          const uint8_t* positive, void* out) {
    typed(out, dtype, [&](auto* values) {
        using T = Element<decltype(values)>;
        const T* gradients = static_cast<const T*>(grad);
        const int64_t row_bytes = (width + 7) / 8;
#pragma omp parallel for num_threads(team(threads, rows* width)) schedule(static)
        for (int64_t i = 0; i < rows; ++i)
            mask_row(gradients + i * width, width, positive + i * row_bytes, values + i * width);
    });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
