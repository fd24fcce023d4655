// Sums over in-edges of the source's row times a matrix of the edge's type (the layer of an RGCN), and the gradient of
// these matrices. No message is in memory.

#include <type_traits>

#include "cpu/gemm/output.h"
#include "cpu/typed/block_sums.h"
#include "cpu/typed/contraction.h"
#include "cpu/typed/float_contraction.h"
#include "cpu/typed/float_sums.h"
#include "cpu/typed/int8_sums.h"

namespace gqc::GQC_ISA {
// Edges by type, then by destination: src, dst of the index type, starts: types + 1 int64; indptr: of the destinations'
// in-edges. u: [sources, k]; b: [types, k, n] with strides; weights: of edges in their order here, or null; out:
// [destinations, n].
GQC_KERNEL(typed_spmm)(int64_t threads, int64_t is_int64, int64_t types, const int64_t* starts, const void* src,
                       const void* dst, const void* indptr, int64_t destinations, int64_t n, int64_t k, const float* u,
                       const float* b, int64_t type_stride, int64_t k_stride, int64_t n_stride, const float* weights,
                       float* out) {
    const Shape shape{destinations, n, k};
    const FloatStack stack(types, shape, b, {type_stride, k_stride, n_stride});
    if (!stack.ok()) return kOutOfMemory;
    return with_typed_edges(is_int64, types, starts, src, dst, [&](const auto& edges) {
        using Index = typename std::decay_t<decltype(edges)>::Id;
        const Rows<Index> rows{static_cast<const Index*>(indptr), destinations};
        uint32_t largest;
        return for_typed_blocks<FloatSums<Index>>(threads, FloatJob<Index>{edges, rows, shape, u, weights, stack, out},
                                                  &largest);
    });
}

// out[t] = the sum over edges of type t of u[src]' . grad[dst], times the edge's weight unless weights are null. u:
// [sources, m], grad: [destinations, n], out: [types, m, n].
GQC_KERNEL(typed_spmm_bwd_b)(int64_t threads, int64_t is_int64, int64_t types, const int64_t* starts, const void* src,
                             const void* dst, int64_t m, int64_t n, const float* u, const float* grad,
                             const float* weights, float* out) {
    return with_typed_edges(is_int64, types, starts, src, dst, [&](const auto& edges) {
        return contract_floats_by_type(threads, edges, m, n, u, grad, weights, out);
    });
}

// As typed_spmm on int8 values u and b, the latter [types, k, n], or [types, n, k] where trans_b; k is at most
// kExactProducts. Without weights sums are exact, with them products are rounded to float, weighted and added in order,
// in parts of kSplit. out = float(sum) * (u_scale * b_scale), rounded to `dtype`; absmax: largest magnitude in out.
GQC_KERNEL(qtyped_spmm)(int64_t threads, int64_t is_int64, int64_t types, const int64_t* starts, const void* src,
                        const void* dst, const void* indptr, int64_t destinations, int64_t n, int64_t k,
                        const int8_t* u, const float* u_scale, const int8_t* b, const float* b_scale, int64_t trans_b,
                        const float* weights, int64_t dtype, void* out, float* absmax) {
    const Shape shape{destinations, n, k};
    const PackedStack stack(threads, types, shape, b, trans_b != 0);
    if (!stack.ok()) return kOutOfMemory;
    return with_typed_edges(is_int64, types, starts, src, dst, [&](const auto& edges) {
        using Index = typename std::decay_t<decltype(edges)>::Id;
        const Int8Job<Index> job{edges,
                                 {static_cast<const Index*>(indptr), destinations},
                                 shape,
                                 u,
                                 stack,
                                 weights,
                                 *u_scale * *b_scale,
                                 {out, dtype, n, {nullptr, n}, is_streamed(destinations * n * bytes_of_dtype(dtype))}};
        uint32_t largest = 0;
        const Error failed = for_typed_blocks<Int8Sums<Index>>(threads, job, &largest);
        *absmax = rounded_largest(largest, dtype);
        return failed;
    });
}

// out[t] = the sum over edges of type t of u[src]' . grad[dst], times (u_scale * grad_scale), rounded to `dtype`. u:
// [sources, m], grad: [destinations, n], out: [types, m, n].
GQC_KERNEL(qtyped_spmm_bwd_b)(int64_t threads, int64_t is_int64, int64_t types, const int64_t* starts, const void* src,
                              const void* dst, int64_t m, int64_t n, const int8_t* u, const float* u_scale,
                              const int8_t* grad, const float* grad_scale, int64_t dtype, void* out, float* absmax) {
    const Buffer<int64_t> wide(types * m * n);
    if (!wide.ok()) return kOutOfMemory;
    wide.clear();
    const Error error = with_typed_edges(is_int64, types, starts, src, dst, [&](const auto& edges) {
        return contract_by_type(threads, edges, m, n, u, grad, wide.get());
    });
    const float scale = *u_scale * *grad_scale;
    typed(out, dtype, [&](auto* values) {
        uint32_t largest = 0;
        for (int64_t i = 0; i < types * m * n; ++i) {
            store(&values[i], static_cast<float>(wide[i]) * scale);
            const uint32_t size = magnitude(load(values[i]));
            largest = size > largest ? size : largest;
        }
        *absmax = float_of(largest);
    });
    return error;
}

}  // namespace gqc::GQC_ISA
