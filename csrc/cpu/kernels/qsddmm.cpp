// SDDMM on INT8 operands, dequantized as they are read.

#include "common/kernel.h"
#include "cpu/graph/edge_map.h"
#include "cpu/graph/row_output.h"

namespace gqc::GQC_ISA {

// As sddmm without kCopy and kDiv; at least one operand is quantized: that has a pointer to its scale, a float operand
// has null.
GQC_KERNEL(qsddmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t edges, const void* lhs, const void* lhs_rows,
                   const float* lhs_scale, const void* rhs, const void* rhs_rows, const float* rhs_scale,
                   int64_t /*packed*/, const FeatureLayout* layout, int64_t dtype, void* out) {
    const auto write = [&](const RowSums& rows, int64_t width) {
        float absmax;
        return write_rows(threads, BlocksOfRows(EdgeBlocks(edges, width)), width, rows, {out, dtype, nullptr, 0},
                          &absmax);
    };
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const auto map = [&](auto a, auto b) {
            using A = decltype(a);
            using B = decltype(b);
            return EdgeMap<A, B, Index>{
                edges,
                {static_cast<const A*>(lhs), static_cast<const Index*>(lhs_rows), lhs_scale ? *lhs_scale : 1.0f},
                {static_cast<const B*>(rhs), static_cast<const Index*>(rhs_rows), rhs_scale ? *rhs_scale : 1.0f},
                *layout}
                .run(op, write);
        };
        if (!lhs_scale) return map(float(), int8_t());
        return rhs_scale ? map(int8_t(), int8_t()) : map(int8_t(), float());
    });
}

}  // namespace gqc::GQC_ISA
