// SPMM on INT8 or packed 4-bit operands. The sum is over the quantized values, the scale comes once for each element of
// the output.

#include "common/kernel.h"
#include "cpu/graph/sum_rows.h"

namespace gqc::GQC_ISA {
namespace {

// An operand with a scale is int8 or packed, one without is float.
template <typename Index>
struct QuantizedOperand {
    const void* data;
    const Index* rows;
    const float* scale;
    bool packed;

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
    float* out;
    int32_t* largest;

    QuantizedSpmm swapped(const FeatureLayout& layout) const { return {threads, rows, rhs, lhs, layout, out, largest}; }

    template <typename Op, typename A, typename B, int StepB>
    Error sum() const {
        const float scale = lhs.factor() * rhs.factor();
        return SumRows<Op, A, 1, B, StepB, Index>(rows, lhs.template as<A>(), rhs.template as<B>(), layout, scale, out)
            .template run<8>(threads, largest);
    }

    Error run(int64_t op) const {
        if (op == kCopy) return lhs.packed ? sum<Copy, Int4, float, 1>() : sum<Copy, int8_t, float, 1>();
        if (op != kMul) return kUnknownOp;
        if (!lhs.is_float() && !rhs.is_float()) return multiply_int8();
        return lhs.packed || rhs.packed ? multiply_float<Int4>() : multiply_float<int8_t>();
    }

    Error multiply_int8() const {
        if (layout.lhs_step == 0) return swapped(layout.swapped()).multiply_int8();
        return layout.rhs_step == 0 ? sum<Mul, int8_t, int8_t, 0>() : sum<Mul, int8_t, int8_t, 1>();
    }

    // One operand is float.
    template <typename Quantized>
    Error multiply_float() const {
        if (layout.lhs_step == 0) return swapped(layout.swapped()).template multiply_float<Quantized>();
        if (layout.rhs_step == 0)
            return lhs.is_float() ? sum<Mul, float, Quantized, 0>() : sum<Mul, Quantized, float, 0>();
        if (lhs.is_float()) return swapped(layout.swapped()).template multiply_float<Quantized>();
        return sum<Mul, Quantized, float, 1>();
    }
};

}  // namespace

// As spmm with the operations kCopy and kMul, of which at least one operand is quantized: that has a pointer to its
// scale, a float operand has null. With `packed` the quantized one is packed and the other float. absmax: largest
// magnitude in out, NaN if out holds NaN.
GQC_KERNEL(qspmm)(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                  const void* lhs, const void* lhs_rows, const float* lhs_scale, const void* rhs, const void* rhs_rows,
                  const float* rhs_scale, int64_t packed, const FeatureLayout* layout, float* out, float* absmax) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        int32_t largest = 0;
        const Error error =
            QuantizedSpmm<Index>{threads,
                                 {static_cast<const Index*>(indptr), rows},
                                 {lhs, static_cast<const Index*>(lhs_rows), lhs_scale, packed && lhs_scale},
                                 {rhs, static_cast<const Index*>(rhs_rows), rhs_scale, packed && rhs_scale},
                                 *layout,
                                 out,
                                 &largest}
                .run(op);
        *absmax = float_of(static_cast<uint32_t>(largest));
        return error;
    });
}

}  // namespace gqc::GQC_ISA
