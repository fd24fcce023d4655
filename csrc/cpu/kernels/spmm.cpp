// SPMM in float32.

#include "common/kernel.h"
#include "cpu/graph/row_output.h"
#include "cpu/graph/row_program.h"
#include "cpu/graph/sum_rows.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Index>
struct Spmm {
    Rows<Index> rows;
    Operand<float, Index> lhs, rhs;
    const FeatureLayout& layout;

    template <typename Op, int StepA, int StepB, int Tile, typename Body>
    Error sum(const Body& body) const {
        const SumRows<Op, float, StepA, float, StepB, Tile, Index> sums(rows, lhs, rhs, layout, 1.0f);
        return sums.ok() ? body(RowSums(sums)) : kOutOfMemory;
    }

    // Calls body(the sums of rows).
    template <typename Body>
    Error run(int64_t op, const Body& body) const {
        if (layout.lhs_step == 0 && op != kDiv) return Spmm{rows, rhs, lhs, layout.swapped()}.run(op, body);
        switch (op) {
            case kCopy:
                return sum<Copy, 1, 1, 8>(body);
            case kMul:
                return layout.rhs_step == 0 ? sum<Mul, 1, 0, 8>(body) : sum<Mul, 1, 1, 8>(body);
            // What few models use is compiled for smaller tiles, to keep the library small.
            case kAdd:
                return layout.rhs_step == 0 ? sum<Add, 1, 0, 4>(body) : sum<Add, 1, 1, 4>(body);
            case kDiv:
                if (layout.lhs_step == 0) return sum<Div, 0, 1, 1>(body);
                return layout.rhs_step == 0 ? sum<Div, 1, 0, 1>(body) : sum<Div, 1, 1, 1>(body);
        }
        return kUnknownOp;
    }
};

// Calls body(matrix, the sums of its rows).
template <typename Body>
Error with_sums(int64_t op, int64_t is_int64, int64_t rows, const void* indptr, const float* lhs, const void* lhs_rows,
                const float* rhs, const void* rhs_rows, const FeatureLayout& layout, const Body& body) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const Rows<Index> matrix{static_cast<const Index*>(indptr), rows};
        const Spmm<Index> spmm{
            matrix, {lhs, static_cast<const Index*>(lhs_rows)}, {rhs, static_cast<const Index*>(rhs_rows)}, layout};
        return spmm.run(op, [&](const RowSums& sums) { return body(matrix, sums); });
    });
}

}  // namespace

// out[v] = sum over the entries p of row v of op(lhs[lhs_rows[p]], rhs[rhs_rows[p]]); kCopy reads lhs only. factors,
// divide: see RowOutput; factors may be null.
GQC_KERNEL(spmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                 const float* lhs, const void* lhs_rows, const float* rhs, const void* rhs_rows,
                 const FeatureLayout* layout, const float* factors, int64_t divide, int64_t dtype, void* out) {
    const auto write = [&](auto matrix, const RowSums& sums) {
        float absmax;
        return write_rows(threads, RowBlocks(matrix, layout->width()), layout->width(), sums,
                          {out, dtype, factors, divide}, &absmax);
    };
    return with_sums(op, is_int64, rows, indptr, lhs, lhs_rows, rhs, rhs_rows, *layout, write);
}

// A pointwise program on what spmm computes, see ProgramArguments.
GQC_KERNEL(spmm_pointwise)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/,
                           const void* indptr, const float* lhs, const void* lhs_rows, const float* rhs,
                           const void* rhs_rows, const FeatureLayout* layout, int64_t dtype, const int64_t* numbers,
                           const void* const* inputs, void* const* outputs, const int64_t* seed) {
    const auto run = [&](auto matrix, const RowSums& sums) {
        return run_on_rows(threads, matrix, layout->width(), sums, {dtype, numbers, inputs, outputs, seed});
    };
    return with_sums(op, is_int64, rows, indptr, lhs, lhs_rows, rhs, rhs_rows, *layout, run);
}

}  // namespace gqc::GQC_ISA
