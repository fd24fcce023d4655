// SDDMM: one row of output for each edge, from the rows of its operands.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/row_sums.h"
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

// Edges, cut as RowBlocks cuts the rows of a matrix.
class EdgeBlocks {
  public:
    EdgeBlocks(int64_t edges, int64_t width) : block(blocks_of(width)), edges_(edges), width_(width) {
        const int64_t blocks = (edges + block - 1) / block;
        parts = blocks < kMostParts ? blocks : kMostParts;
    }

    int64_t work() const { return edges_ * width_; }
    int64_t count() const { return edges_; }
    int64_t first(int64_t part) const {
        const int64_t blocks = (edges_ + block - 1) / block;
        return part == parts ? edges_ : blocks * part / parts * block;
    }

    const int64_t block;
    int64_t parts;

  private:
    static constexpr int64_t kMostParts = 1024, kFloats = 4096, kMostEdges = 1024;

    static int64_t blocks_of(int64_t width) {
        const int64_t fitting = kFloats / width;
        return fitting > kMostEdges ? kMostEdges : fitting >= 32 ? fitting / 32 * 32 : fitting < 1 ? 1 : fitting;
    }

    int64_t edges_, width_;
};

// Calls body(the rows of an operation's results, each of `width` elements).
template <typename A, typename B, typename Index>
struct EdgeMap {
    int64_t edges;
    EdgeOperand<A, Index> lhs;
    EdgeOperand<B, Index> rhs;
    const FeatureLayout& layout;

    template <typename Body>
    Error run(int64_t op, const Body& body) const {
        if (op == kSub) return EdgeMap{edges, lhs, rhs.negated(), layout}.run(kAdd, body);
        if (layout.lhs_step == 0 && op != kDiv) {
            return EdgeMap<B, A, Index>{edges, rhs, lhs, layout.swapped()}.run(op, body);
        }
        const float both = lhs.scale * rhs.scale;
        switch (op) {
            case kAdd:
                return layout.rhs_step == 0 ? elementwise<Add, 1, 0>(lhs.scale, rhs.scale, 1.0f, body)
                                            : elementwise<Add, 1, 1>(lhs.scale, rhs.scale, 1.0f, body);
            case kMul:
                return layout.rhs_step == 0 ? elementwise<Mul, 1, 0>(1.0f, 1.0f, both, body)
                                            : elementwise<Mul, 1, 1>(1.0f, 1.0f, both, body);
            case kDiv:
                return divide(body);
            case kDot:
                return dot(body);
        }
        return kUnknownOp;
    }

    // Op of the scaled operands, times out_scale.
    template <typename Op, int StepA, int StepB, typename Body>
    Error elementwise(float lhs_scale, float rhs_scale, float out_scale, const Body& body) const {
        const Chunks chunks(layout);
        if (!chunks.ok()) return kOutOfMemory;
        const int64_t width = layout.width();
        const auto rows = [&](int64_t first, int64_t last, float* to) {
            with_lanes(chunks.lanes, [&](auto lanes) {
                const Chunk* const begin = chunks.get();
                const Chunk* const end = begin + chunks.count;
                for (int64_t i = first; i < last; ++i, to += width) {
                    prefetch<Op::kReadsRhs>(i);
                    const A* const a = lhs.row(i, layout.lhs_width);
                    const B* const b = Op::kReadsRhs ? rhs.row(i, layout.rhs_width) : nullptr;
                    for (const Chunk* chunk = begin; chunk != end; ++chunk) {
                        auto x = fetch<float, lanes, StepA>(a + chunk->lhs) * lhs_scale;
                        if constexpr (Op::kReadsRhs)
                            x = Op::apply(x, fetch<float, lanes, StepB>(b + chunk->rhs) * rhs_scale);
                        put(to + chunk->out, x * out_scale);
                    }
                }
            });
        };
        return body(RowSums(rows), width);
    }

  private:
    // Quantized operands are too rarely divided for kernels of their own.
    template <typename Body>
    Error divide(const Body& body) const {
        if constexpr (std::is_same_v<A, float> && std::is_same_v<B, float>) {
            if (layout.lhs_step == 0) return elementwise<Div, 0, 1>(1.0f, 1.0f, 1.0f, body);
            return layout.rhs_step == 0 ? elementwise<Div, 1, 0>(1.0f, 1.0f, 1.0f, body)
                                        : elementwise<Div, 1, 1>(1.0f, 1.0f, 1.0f, body);
        } else {
            return kUnknownOp;
        }
    }

    // Fetches the rows of the edge kAhead later; those of a few elements are not worth it.
    template <bool ReadsRhs>
    __attribute__((always_inline)) void prefetch(int64_t i) const {
        const int64_t widest = layout.lhs_width > layout.rhs_width ? layout.lhs_width : layout.rhs_width;
        if (widest < 8 || i >= edges - kAhead) return;
        lhs.prefetch(i + kAhead, layout.lhs_width);
        if (ReadsRhs) rhs.prefetch(i + kAhead, layout.rhs_width);
    }

    template <typename Body>
    Error dot(const Body& body) const {
        const float scale = lhs.scale * rhs.scale;
        const auto rows = [&](int64_t first, int64_t last, float* to) {
            with_lanes(lanes_for(layout.length), [&](auto lanes) {
                const FeatureLayout shape = layout;
                for (int64_t i = first; i < last; ++i, to += shape.runs) {
                    prefetch<true>(i);
                    const A* const a = lhs.row(i, shape.lhs_width);
                    const B* const b = rhs.row(i, shape.rhs_width);
                    for (int64_t r = 0; r < shape.runs; ++r) {
                        to[r] =
                            scale * product<lanes>(a + shape.lhs_offsets[r], b + shape.rhs_offsets[r], shape.length);
                    }
                }
            });
        };
        return body(RowSums(rows), layout.runs);
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
