// SPMM in float32.

#include "common/kernel.h"
#include "cpu/graph/sum_rows.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Index>
struct Spmm {
    int64_t threads;
    Rows<Index> rows;
    Operand<float, Index> lhs, rhs;
    const FeatureLayout& layout;
    RowOutput out;

    template <typename Op, int StepA, int StepB, int Tile>
    Error sum() const {
        int32_t largest = 0;
        return SumRows<Op, float, StepA, float, StepB, Index>(rows, lhs, rhs, layout, 1.0f, out)
            .template run<Tile>(threads, &largest);
    }

    Error run(int64_t op) const {
        if (layout.lhs_step == 0 && op != kDiv) return Spmm{threads, rows, rhs, lhs, layout.swapped(), out}.run(op);
        switch (op) {
            case kCopy:
                return sum<Copy, 1, 1, 8>();
            case kMul:
                return layout.rhs_step == 0 ? sum<Mul, 1, 0, 8>() : sum<Mul, 1, 1, 8>();
            // What few models use is compiled for smaller tiles, to keep the library small.
            case kAdd:
                return layout.rhs_step == 0 ? sum<Add, 1, 0, 4>() : sum<Add, 1, 1, 4>();
            case kDiv:
                if (layout.lhs_step == 0) return sum<Div, 0, 1, 1>();
                return layout.rhs_step == 0 ? sum<Div, 1, 0, 1>() : sum<Div, 1, 1, 1>();
        }
        return kUnknownOp;
    }
};

}  // namespace

// out[v] = sum over the entries p of row v of op(lhs[lhs_rows[p]], rhs[rhs_rows[p]]); kCopy reads lhs only. factors,
// divide: see RowOutput; factors may be null.
GQC_KERNEL(spmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                 const float* lhs, const void* lhs_rows, const float* rhs, const void* rhs_rows,
                 const FeatureLayout* layout, const float* factors, int64_t divide, int64_t dtype, void* out) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        return Spmm<Index>{threads,
                           {static_cast<const Index*>(indptr), rows},
                           {lhs, static_cast<const Index*>(lhs_rows)},
                           {rhs, static_cast<const Index*>(rhs_rows)},
                           *layout,
                           {out, dtype, factors, divide}}
            .run(op);
    });
}

}  // namespace gqc::GQC_ISA
