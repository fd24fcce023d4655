// SDDMM: one row of output for each edge, from the rows of its operands.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Features read by edges: edge i reads row rows[i] of data, or row i where rows is null. Values are data * scale.
template <typename T, typename Index>
struct EdgeOperand {
    const T* data;
    const Index* rows;
    float scale;

    const T* row(int64_t i, int64_t width) const { return data + (rows ? static_cast<int64_t>(rows[i]) : i) * width; }
};

template <typename A, typename B, typename Index>
struct EdgeMap {
    int64_t threads, edges;
    EdgeOperand<A, Index> lhs;
    EdgeOperand<B, Index> rhs;
    const FeatureLayout& layout;
    float* out;

    Error run(int64_t op) const {
        switch (op) {
            case kAdd:
                return with_steps([&](auto a, auto b) { return elementwise<Add, a, b>(lhs.scale, rhs.scale, 1.0f); });
            case kSub:
                return with_steps([&](auto a, auto b) { return elementwise<Sub, a, b>(lhs.scale, rhs.scale, 1.0f); });
            case kMul:
                return with_steps(
                    [&](auto a, auto b) { return elementwise<Mul, a, b>(1.0f, 1.0f, lhs.scale * rhs.scale); });
            case kDiv:
                return with_steps([&](auto a, auto b) { return elementwise<Div, a, b>(lhs.scale, rhs.scale, 1.0f); });
            case kDot:
                with_lanes(lanes_for(layout.length), [&](auto lanes) { dot<lanes>(); });
                return nullptr;
        }
        return kUnknownOp;
    }

    // Op of the scaled operands, times out_scale.
    template <typename Op, int StepA, int StepB>
    Error elementwise(float lhs_scale, float rhs_scale, float out_scale) const {
        const Chunks chunks(layout);
        if (!chunks.ok()) return kOutOfMemory;
        with_lanes(chunks.lanes, [&](auto lanes) {
            // Copies on the stack: the compiler need not fear that storing an output changes them.
            const EdgeMap self = *this;
            const Chunk* const begin = chunks.get();
            const Chunk* const end = begin + chunks.count;
            const int64_t width = layout.width(), lhs_width = layout.lhs_width, rhs_width = layout.rhs_width;
#pragma omp parallel for num_threads(team(threads, edges* width)) schedule(static) firstprivate(self)
            for (int64_t i = 0; i < self.edges; ++i) {
                const A* a = self.lhs.row(i, lhs_width);
                const B* b = Op::kReadsRhs ? self.rhs.row(i, rhs_width) : nullptr;
                float* const row = self.out + i * width;
                for (const Chunk* chunk = begin; chunk != end; ++chunk) {
                    auto x = fetch<float, lanes, StepA>(a + chunk->lhs) * lhs_scale;
                    if constexpr (Op::kReadsRhs)
                        x = Op::apply(x, fetch<float, lanes, StepB>(b + chunk->rhs) * rhs_scale);
                    put(row + chunk->out, x * out_scale);
                }
            }
        });
        return nullptr;
    }

  private:
    template <typename Body>
    Error with_steps(const Body& body) const {
        using Zero = std::integral_constant<int, 0>;
        using One = std::integral_constant<int, 1>;
        if (layout.lhs_step == 0) return body(Zero(), One());
        return layout.rhs_step == 0 ? body(One(), Zero()) : body(One(), One());
    }

    template <int Lanes>
    void dot() const {
        const float scale = lhs.scale * rhs.scale;
#pragma omp parallel for num_threads(team(threads, edges* layout.width())) schedule(static)
        for (int64_t i = 0; i < edges; ++i) {
            const A* a = lhs.row(i, layout.lhs_width);
            const B* b = rhs.row(i, layout.rhs_width);
            for (int64_t r = 0; r < layout.runs; ++r) {
                const A* x = a + layout.lhs_offsets[r];
                const B* y = b + layout.rhs_offsets[r];
                out[i * layout.runs + r] =
                    scale * (kExact && layout.length > kExactSums ? long_product<Lanes>(x, y)
                                                                  : product<Lanes>(x, y, layout.length));
            }
        }
    }

    static constexpr bool kExact = std::is_same_v<A, int8_t> && std::is_same_v<B, int8_t>;
    using Sum = std::conditional_t<kExact, int32_t, float>;

    template <int Lanes>
    Sum product(const A* a, const B* b, int64_t length) const {
        Vector<Sum, Lanes> sum{};
        int64_t i = 0;
        for (; i + Lanes <= length; i += Lanes) sum += fetch<Sum, Lanes, 1>(a + i) * fetch<Sum, Lanes, 1>(b + i);
        Sum total = sum_of_lanes<Lanes, Sum>(sum);
        for (; i < length; ++i) total += fetch<Sum, 1, 1>(a + i) * fetch<Sum, 1, 1>(b + i);
        return total;
    }

    template <int Lanes>
    float long_product(const A* a, const B* b) const {
        int64_t total = 0;
        for (int64_t i = 0; i < layout.length; i += kExactSums) {
            total += static_cast<int64_t>(
                product<Lanes>(a + i, b + i, layout.length - i < kExactSums ? layout.length - i : kExactSums));
        }
        return static_cast<float>(total);
    }
};

}  // namespace gqc::GQC_ISA
