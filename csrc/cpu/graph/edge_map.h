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

    EdgeOperand negated() const { return {data, rows, -scale}; }
    const T* row(int64_t i, int64_t width) const { return data + (rows ? static_cast<int64_t>(rows[i]) : i) * width; }

    // Fetches the start of a row into the cache; the processor itself notices that a long one goes on. Inlined by
    // force: GCC drops a call that does nothing else as pure.
    __attribute__((always_inline)) void prefetch(int64_t i, int64_t width) const {
        const char* const start = reinterpret_cast<const char*>(row(i, width));
        const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 1
        for (int64_t offset = 0; offset < (bytes < 512 ? bytes : 512); offset += 64) __builtin_prefetch(start + offset);
    }
};

template <typename A, typename B, typename Index>
struct EdgeMap {
    int64_t threads, edges;
    EdgeOperand<A, Index> lhs;
    EdgeOperand<B, Index> rhs;
    const FeatureLayout& layout;
    float* out;

    Error run(int64_t op) const {
        if (op == kSub) return EdgeMap{threads, edges, lhs, rhs.negated(), layout, out}.run(kAdd);
        if (layout.lhs_step == 0 && op != kDiv) {
            return EdgeMap<B, A, Index>{threads, edges, rhs, lhs, layout.swapped(), out}.run(op);
        }
        const float both = lhs.scale * rhs.scale;
        switch (op) {
            case kAdd:
                return layout.rhs_step == 0 ? elementwise<Add, 1, 0>(lhs.scale, rhs.scale, 1.0f)
                                            : elementwise<Add, 1, 1>(lhs.scale, rhs.scale, 1.0f);
            case kMul:
                return layout.rhs_step == 0 ? elementwise<Mul, 1, 0>(1.0f, 1.0f, both)
                                            : elementwise<Mul, 1, 1>(1.0f, 1.0f, both);
            case kDiv:
                return divide();
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
            const int workers = team(threads, edges * width);
            const int64_t prefetched = num_prefetched();
#pragma omp parallel for num_threads(workers) schedule(static) firstprivate(self)
            for (int64_t i = 0; i < self.edges; ++i) {
                if (i < prefetched) {
                    self.lhs.prefetch(i + kAhead, lhs_width);
                    if (Op::kReadsRhs) self.rhs.prefetch(i + kAhead, rhs_width);
                }
                const A* const a = self.lhs.row(i, lhs_width);
                const B* const b = Op::kReadsRhs ? self.rhs.row(i, rhs_width) : nullptr;
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
    // Quantized operands are too rarely divided for kernels of their own.
    Error divide() const {
        if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
            if (layout.lhs_step == 0) return elementwise<Div, 0, 1>(1.0f, 1.0f, 1.0f);
            return layout.rhs_step == 0 ? elementwise<Div, 1, 0>(1.0f, 1.0f, 1.0f)
                                        : elementwise<Div, 1, 1>(1.0f, 1.0f, 1.0f);
        } else {
            return kUnknownOp;
        }
    }

    // Edges that prefetch the rows of the one kAhead later; rows of a few elements are not worth it.
    int64_t num_prefetched() const {
        const int64_t widest = layout.lhs_width > layout.rhs_width ? layout.lhs_width : layout.rhs_width;
        return widest < 8 ? 0 : edges - kAhead;
    }

    template <int Lanes>
    void dot() const {
        const EdgeMap self = *this;
        const FeatureLayout shape = layout;
        const float scale = lhs.scale * rhs.scale;
        const int workers = team(threads, edges * layout.width());
        const int64_t prefetched = num_prefetched();
#pragma omp parallel for num_threads(workers) schedule(static) firstprivate(self, shape)
        for (int64_t i = 0; i < self.edges; ++i) {
            if (i < prefetched) {
                self.lhs.prefetch(i + kAhead, shape.lhs_width);
                self.rhs.prefetch(i + kAhead, shape.rhs_width);
            }
            const A* const a = self.lhs.row(i, shape.lhs_width);
            const B* const b = self.rhs.row(i, shape.rhs_width);
            float* const row = self.out + i * shape.runs;
            for (int64_t r = 0; r < shape.runs; ++r) {
                row[r] = scale * product<Lanes>(a + shape.lhs_offsets[r], b + shape.rhs_offsets[r], shape.length);
            }
        }
    }

    static constexpr bool kExact = std::is_same_v<A, int8_t> && std::is_same_v<B, int8_t>;
    using Sum = std::conditional_t<kExact, int32_t, float>;

    template <int Lanes>
    static float product(const A* a, const B* b, int64_t length) {
        if constexpr (kExact) {
            if (length > kExactSums) return long_product<Lanes>(a, b, length);
        }
        return static_cast<float>(short_product<Lanes>(a, b, length));
    }

    template <int Lanes>
    static Sum short_product(const A* a, const B* b, int64_t length) {
        Vector<Sum, Lanes> sum{};
        int64_t i = 0;
        for (; i + Lanes <= length; i += Lanes) sum += fetch<Sum, Lanes, 1>(a + i) * fetch<Sum, Lanes, 1>(b + i);
        Sum total = sum_of_lanes<Lanes, Sum>(sum);
        for (; i < length; ++i) total += fetch<Sum, 1, 1>(a + i) * fetch<Sum, 1, 1>(b + i);
        return total;
    }

    template <int Lanes>
    static float long_product(const A* a, const B* b, int64_t length) {
        int64_t total = 0;
        for (int64_t i = 0; i < length; i += kExactSums) {
            total += short_product<Lanes>(a + i, b + i, length - i < kExactSums ? length - i : kExactSums);
        }
        return static_cast<float>(total);
    }
};

}  // namespace gqc::GQC_ISA
