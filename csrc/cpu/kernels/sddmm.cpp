// SDDMM in float32.

#include "common/kernel.h"
#include "cpu/graph/edge_map.h"
#include "cpu/graph/row_output.h"

namespace gqc::GQC_ISA {

// out[i] = op(lhs[lhs_rows[i]], rhs[rhs_rows[i]]) for each edge i; rows that are null stand for i itself, kCopy reads
// lhs only.
GQC_KERNEL(sddmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t edges, const float* lhs, const void* lhs_rows,
                  const float* rhs, const void* rhs_rows, const FeatureLayout* layout, int64_t dtype, void* out) {
    const auto write = [&](const RowSums& rows, int64_t width) {
        float absmax;
        return write_rows(threads, BlocksOfRows(EdgeBlocks(edges, width)), width, rows, {out, dtype, nullptr, 0},
                          &absmax);
    };
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeMap<float, float, Index> map{edges,
                                               {lhs, static_cast<const Index*>(lhs_rows), 1.0f},
                                               {rhs, static_cast<const Index*>(rhs_rows), 1.0f},
                                               *layout};
        return op == kCopy ? map.template elementwise<Copy, 1, 1>(1.0f, 1.0f, 1.0f, write) : map.run(op, write);
    });
}

}  // namespace gqc::GQC_ISA
