// SPMM on INT8 operands. The sum is over the quantized values, the scale comes once for each element of the output.

#include "common/kernel.h"
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
    RowOutput out;
    int32_t* largest;

    QuantizedSpmm swapped(const FeatureLayout& layout) const { return {threads, rows, rhs, lhs, layout, out, largest}; }

    template <typename Op, typename A, typename B, int StepB>
    Error sum() const {
        const float scale = lhs.factor() * rhs.factor();
        return SumRows<Op, A, 1, B, StepB, Index>(rows, lhs.template as<A>(), rhs.template as<B>(), layout, scale, out)
            .template run<8>(threads, largest);
    }

    Error run(int64_t op) const {
        if (op == kCopy) return sum<Copy, int8_t, float, 1>();
        if (op != kMul) return kUnknownOp;
        // Operands commute: the first one is not the one that a run repeats and, where none is, not the float one.
        if (layout.lhs_step == 0 || (layout.rhs_step == 1 && lhs.is_float()))
            return swapped(layout.swapped()).multiply();
        return multiply();
    }

    Error multiply() const {
        const bool repeats = layout.rhs_step == 0;
        if (lhs.is_float()) return sum<Mul, float, int8_t, 0>();
        if (rhs.is_float()) return repeats ? sum<Mul, int8_t, float, 0>() : sum<Mul, int8_t, float, 1>();
        return repeats ? sum<Mul, int8_t, int8_t, 0>() : sum<Mul, int8_t, int8_t, 1>();
    }
};

}  // namespace

// As spmm with the operations kCopy and kMul, of which at least one operand is quantized: that has a pointer to its
// scale, a float operand has null. absmax: largest magnitude in out, NaN if out holds NaN.
GQC_KERNEL(qspmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                  const void* lhs, const void* lhs_rows, const float* lhs_scale, const void* rhs, const void* rhs_rows,
                  const float* rhs_scale, int64_t /*packed*/, const FeatureLayout* layout, const float* factors,
                  int64_t divide, int64_t dtype, void* out, float* absmax) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        int32_t largest = 0;
        const Error error = QuantizedSpmm<Index>{threads,
                                                 {static_cast<const Index*>(indptr), rows},
                                                 {lhs, static_cast<const Index*>(lhs_rows), lhs_scale},
                                                 {rhs, static_cast<const Index*>(rhs_rows), rhs_scale},
                                                 *layout,
                                                 {out, dtype, factors, divide},
                                                 &largest}
                                .run(op);
        *absmax = float_of(static_cast<uint32_t>(largest));
        return error;
    });
}

}  // namespace gqc::GQC_ISA
