// Products of float matrices in float32, for few columns and contracted indices beside many rows.

#include "cpu/gemm/floats/contraction.h"
#include "cpu/gemm/floats/rows.h"

namespace gqc::GQC_ISA {

// out: [m, n] = a . b for a: [m, k]; b: [k, n], or [n, k] where trans_b.
// Where trans_a: a' . (factors * b) for a: [k, m]; b: [k, n]; factors: [k] or null.
GQC_KERNEL(mm)(int64_t threads, const float* a, const float* b, int64_t m, int64_t n, int64_t k, int64_t trans_a,
               int64_t trans_b, const float* factors, float* out) {
    if (trans_a) return contract_floats(threads, k, {a, m, nullptr}, {b, n, factors}, out);
    const Shape shape{m, n, k};
    const FloatProduct product(shape, a, b, trans_b != 0);
    if (!product.ok()) return kOutOfMemory;
    const bool streamed = is_streamed(m * n * static_cast<int64_t>(sizeof *out));
    return for_float_blocks(threads, shape, Division(shape), ProductRows{product, {out, n, {nullptr, n}, streamed}});
}

}  // namespace gqc::GQC_ISA
