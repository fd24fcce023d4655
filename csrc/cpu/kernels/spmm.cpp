// SPMM of floats, which are added up in float32.

#include "common/kernel.h"
#include "cpu/graph/row_output.h"
#include "cpu/graph/row_program.h"
#include "cpu/graph/sum_halves.h"
#include "cpu/graph/sum_rows.h"

namespace gqc::GQC_ISA {
namespace {

// float32, or where it is copied bfloat16, of which the result is too, or float24.
template <typename Index>
struct Table {
    const void* data;
    const Index* rows;
};

template <typename Index>
struct Spmm {
    int64_t threads;
    Rows<Index> rows;
    Table<Index> lhs, rhs;
    const FeatureLayout& layout;

    template <typename Op, int StepA, int StepB, int Tile, typename A = float, typename Body>
    Error sum(const Body& body) const {
        const Operand<A, Index> operand{static_cast<const A*>(lhs.data), lhs.rows};
        const SumRows<Op, A, StepA, float, StepB, Tile, Index> sums(
            rows, operand, {static_cast<const float*>(rhs.data), rhs.rows}, layout, 1.0f);
        return sums.ok() ? split(PartSums(sums), body) : kOutOfMemory;
    }

    template <typename Body>
    Error split(const PartSums& sums, const Body& body) const {
        const SplitSums<Index> split(threads, rows, sums, layout.width());
        return split.ok() ? body(RowSums(split)) : kOutOfMemory;
    }

    template <typename Body>
    Error copy_halves(const Body& body) const {
        if (layout.width() < SumHalves<Index>::kLeastWidth) return sum<Copy, 1, 1, 3, bfloat16>(body);
        const Operand<bfloat16, Index> operand{static_cast<const bfloat16*>(lhs.data), lhs.rows};
        const SumHalves<Index> sums(rows, operand, layout.width());
        return split(PartSums(sums), body);
    }

    // Calls body(the sums of rows).
    template <typename Body>
    Error run(int64_t op, int64_t dtype, const Body& body) const {
        if (op == kCopy && dtype == kBfloat16) return copy_halves(body);
        if (op == kCopyFloat24) return sum<Copy, 1, 1, 8, float24>(body);
        if (layout.lhs_step == 0 && op != kDiv)
            return Spmm{threads, rows, rhs, lhs, layout.swapped()}.run(op, dtype, body);
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

// Uses the sums of the rows of a matrix.
Error with_sums(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, const void* indptr, const void* lhs,
                const void* lhs_rows, const float* rhs, const void* rhs_rows, const FeatureLayout& layout,
                int64_t dtype, const UseOfSums& use) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const Rows<Index> matrix{static_cast<const Index*>(indptr), rows};
        const Spmm<Index> spmm{threads,
                               matrix,
                               {lhs, static_cast<const Index*>(lhs_rows)},
                               {rhs, static_cast<const Index*>(rhs_rows)},
                               layout};
        const RowBlocks blocks(matrix, layout.width());
        return spmm.run(op, dtype, [&](const RowSums& sums) { return use(sums, BlocksOfRows(blocks)); });
    });
}

}  // namespace

// out[v] = sum over the entries p of row v of op(lhs[lhs_rows[p]], rhs[rhs_rows[p]]); kCopy reads lhs only, whose
// elements are bfloat16 where dtype is, and kCopyFloat24 float24; all others are float32. factors, divide: see
// RowOutput; factors may be null.
GQC_KERNEL(spmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                 const void* lhs, const void* lhs_rows, const float* rhs, const void* rhs_rows,
                 const FeatureLayout* layout, const float* factors, int64_t divide, int64_t dtype, void* out) {
    const auto write = [&](const RowSums& sums, const BlocksOfRows& blocks) {
        float absmax;
        return write_rows(threads, blocks, layout->width(), sums, {out, dtype, factors, divide}, &absmax);
    };
    return with_sums(threads, op, is_int64, rows, indptr, lhs, lhs_rows, rhs, rhs_rows, *layout, dtype,
                     UseOfSums(write));
}

// A pointwise program on what spmm computes, see ProgramArguments.
GQC_KERNEL(spmm_pointwise)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/,
                           const void* indptr, const void* lhs, const void* lhs_rows, const float* rhs,
                           const void* rhs_rows, const FeatureLayout* layout, int64_t dtype, const int64_t* numbers,
                           const void* const* inputs, void* const* outputs, const int64_t* seed) {
    const auto run = [&](const RowSums& sums, const BlocksOfRows& blocks) {
        return run_on_rows(threads, blocks, layout->width(), sums, {dtype, numbers, inputs, outputs, seed});
    };
    return with_sums(threads, op, is_int64, rows, indptr, lhs, lhs_rows, rhs, rhs_rows, *layout, dtype, UseOfSums(run));
}

}  // namespace gqc::GQC_ISA
