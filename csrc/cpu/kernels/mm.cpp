// Products of float matrices, for few columns and contracted indices beside many rows: in float32 or, where the
// processor has tiles for it, in three products of bfloat16 (cpu/gemm/bf16x3/split.h).

#include "cpu/gemm/floats/contraction.h"
#include "cpu/gemm/floats/rows.h"
#if defined(__AMX_BF16__)
#    include "cpu/gemm/bf16x3/contraction.h"
#    include "cpu/gemm/bf16x3/product.h"
#endif

namespace gqc::GQC_ISA {
namespace {

template <typename Product>
Error write(int64_t threads, const Product& product, float* out) {
    if (!product.ok()) return kOutOfMemory;
    const Shape& shape = product.shape();
    const bool streamed = is_streamed(shape.m * shape.n * static_cast<int64_t>(sizeof *out));
    const ProductRows<Product> rows{product, {out, kFloat32, shape.n, {nullptr, shape.n}, streamed}};
    return for_float_blocks(threads, shape, Division(shape), rows);
}

}  // namespace

// out: [m, n] = a . b for a: [m, k]; b: [k, n], or [n, k] where trans_b.
// Where trans_a: a' . (factors * b) for a: [k, m]; b: [k, n]; factors: [k] or null.
// narrow_a, narrow_b: whether a, and where trans_a b, is in float24 (cpu/float24.h); bf16x3: whether three products of
// bfloat16 are exact enough.
GQC_KERNEL(mm)(int64_t threads, const void* a, const void* b, int64_t m, int64_t n, int64_t k, int64_t trans_a,
               int64_t trans_b, const float* factors, int64_t narrow_a, int64_t narrow_b,
               [[maybe_unused]] int64_t bf16x3, float* out) {
    const Shape shape{m, n, k};
    const FloatMatrix left{a, trans_a ? m : k, narrow_a != 0};
    const FloatLines lines(left, nullptr), right({b, n, narrow_b != 0}, factors);
    const float* const small = static_cast<const float*>(b);
#if defined(__AMX_BF16__)
    if (bf16x3 && trans_a) return contract_floats<SplitPart>(threads, k, lines, right, out);
    if (bf16x3) return write(threads, SplitProduct(shape, left, small, trans_b != 0), out);
#endif
    if (trans_a) return contract_floats<FloatPart>(threads, k, lines, right, out);
    return write(threads, FloatProduct(shape, left, small, trans_b != 0), out);
}

}  // namespace gqc::GQC_ISA
