// Max or min of INT8 features over in-edges.

#include "common/kernel.h"
#include "cpu/graph/best_rows.h"

namespace gqc::GQC_ISA {

// As spmm_cmp with kCopy, on int8 values of one scale.
GQC_KERNEL(qspmm_cmp)(int64_t threads, int64_t is_max, int64_t is_int64, int64_t rows, const void* indptr,
                      const void* eids, const int8_t* u, const void* u_rows, const float* scale,
                      const FeatureLayout* layout, float* out, int64_t* arg) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const auto best = [&](auto order) {
            const Operand<int8_t, Index> operand{u, static_cast<const Index*>(u_rows)};
            return BestRows<decltype(order), Copy, int8_t, 1, int8_t, 1, Index>(
                       {static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), operand, operand,
                       *layout, *scale, out, arg)
                .template run<kBestTile>(threads);
        };
        return is_max ? best(Max()) : best(Min());
    });
}

}  // namespace gqc::GQC_ISA
