// SPMM on INT8 operands. The sum is over the quantized values, the scale comes once for each element of the output.

#include "common/kernel.h"
#include "cpu/graph/row_output.h"
#include "cpu/graph/row_program.h"
#include "cpu/graph/sum_bytes.h"
#include "cpu/graph/sum_rows.h"

namespace gqc::GQC_ISA {
namespace {

// An operand with a scale is int8, one without is float.
template <typename Index>
struct QuantizedOperand {
    const void* data;
    const Index* rows;
    const float* scale;

    bool is_float() const { return scale == nullptr; }
    float factor() const { return scale ? *scale : 1.0f; }
    template <typename T>
    Operand<T, Index> as() const {
        return {static_cast<const T*>(data), rows};
    }
};

template <typename Index>
struct QuantizedSpmm {
    int64_t threads;
    Rows<Index> rows;
    QuantizedOperand<Index> lhs, rhs;
    const FeatureLayout& layout;

    template <typename Op, typename A, typename B, int StepB, typename Body>
    Error sum(const Body& body) const {
        const float scale = lhs.factor() * rhs.factor();
        const SumRows<Op, A, 1, B, StepB, 8, Index> sums(rows, lhs.template as<A>(), rhs.template as<B>(), layout,
                                                         scale);
        return sums.ok() ? split(PartSums(sums), body) : kOutOfMemory;
    }

    template <typename Body>
    Error split(const PartSums& sums, const Body& body) const {
        const SplitSums<Index> split(threads, rows, sums, layout.width());
        return split.ok() ? body(RowSums(split)) : kOutOfMemory;
    }

    // Calls body(the sums of rows).
    template <typename Body>
    Error run(int64_t op, const Body& body) const {
        if (op == kCopy) return copy(body);
        if (op != kMul) return kUnknownOp;
        // Operands commute: the first one is not the one that a run repeats and, where none is, not the float one.
        if (layout.lhs_step == 0 || (layout.rhs_step == 1 && lhs.is_float()))
            return QuantizedSpmm{threads, rows, rhs, lhs, layout.swapped()}.multiply(body);
        return multiply(body);
    }

    template <typename Body>
    Error copy(const Body& body) const {
        if (layout.width() < SumBytes<Index>::kLeastWidth) return sum<Copy, int8_t, float, 1>(body);
        const SumBytes<Index> sums(rows, lhs.template as<int8_t>(), layout.width(), lhs.factor() * rhs.factor());
        return split(PartSums(sums), body);
    }

    template <typename Body>
    Error multiply(const Body& body) const {
        const bool repeats = layout.rhs_step == 0;
        if (lhs.is_float()) return sum<Mul, float, int8_t, 0>(body);
        if (rhs.is_float()) return repeats ? sum<Mul, int8_t, float, 0>(body) : sum<Mul, int8_t, float, 1>(body);
        return repeats ? sum<Mul, int8_t, int8_t, 0>(body) : sum<Mul, int8_t, int8_t, 1>(body);
    }
};

// Uses the sums of the rows of a matrix.
Error with_sums(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, const void* indptr, const void* lhs,
                const void* lhs_rows, const float* lhs_scale, const void* rhs, const void* rhs_rows,
                const float* rhs_scale, const FeatureLayout& layout, const UseOfSums& use) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const Rows<Index> matrix{static_cast<const Index*>(indptr), rows};
        const QuantizedSpmm<Index> spmm{threads,
                                        matrix,
                                        {lhs, static_cast<const Index*>(lhs_rows), lhs_scale},
                                        {rhs, static_cast<const Index*>(rhs_rows), rhs_scale},
                                        layout};
        const RowBlocks blocks(matrix, layout.width());
        return spmm.run(op, [&](const RowSums& sums) { return use(sums, BlocksOfRows(blocks)); });
    });
}

}  // namespace

// As spmm with the operations kCopy and kMul, of which at least one operand is quantized: that has a pointer to its
// scale, a float operand has null. absmax: largest magnitude in out, NaN if out holds NaN.
GQC_KERNEL(qspmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                  const void* lhs, const void* lhs_rows, const float* lhs_scale, const void* rhs, const void* rhs_rows,
                  const float* rhs_scale, int64_t /*packed*/, const FeatureLayout* layout, const float* factors,
                  int64_t divide, int64_t dtype, void* out, float* absmax) {
    const auto write = [&](const RowSums& sums, const BlocksOfRows& blocks) {
        return write_rows(threads, blocks, layout->width(), sums, {out, dtype, factors, divide}, absmax);
    };
    return with_sums(threads, op, is_int64, rows, indptr, lhs, lhs_rows, lhs_scale, rhs, rhs_rows, rhs_scale, *layout,
                     UseOfSums(write));
}

// A pointwise program on what qspmm computes, see ProgramArguments.
GQC_KERNEL(qspmm_pointwise)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/,
                            const void* indptr, const void* lhs, const void* lhs_rows, const float* lhs_scale,
                            const void* rhs, const void* rhs_rows, const float* rhs_scale, const FeatureLayout* layout,
                            int64_t dtype, const int64_t* numbers, const void* const* inputs, void* const* outputs,
                            const int64_t* seed) {
    const auto run = [&](const RowSums& sums, const BlocksOfRows& blocks) {
        return run_on_rows(threads, blocks, layout->width(), sums, {dtype, numbers, inputs, outputs, seed});
    };
    return with_sums(threads, op, is_int64, rows, indptr, lhs, lhs_rows, lhs_scale, rhs, rhs_rows, rhs_scale, *layout,
                     UseOfSums(run));
}

}  // namespace gqc::GQC_ISA
