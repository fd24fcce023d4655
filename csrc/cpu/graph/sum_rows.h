// SPMM with a sum: the messages of a row's entries are added up in registers, a tile of the features at a time.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/row_output.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Sum of Op(lhs, rhs) in each row, times `scale`; `largest` gets the magnitude() of the largest output. Operands of
// int8 are added up in int32, others in float. Steps are those of FeatureLayout, known to the compiler.
template <typename Op, typename A, int StepA, typename B, int StepB, typename Index>
class SumRows {
    static constexpr bool kExact = std::is_same_v<A, int8_t> && (!Op::kReadsRhs || std::is_same_v<B, int8_t>);
    using Sum = std::conditional_t<kExact, int32_t, float>;

  public:
    SumRows(Rows<Index> rows, Operand<A, Index> lhs, Operand<B, Index> rhs, const FeatureLayout& layout, float scale,
            const RowOutput& out)
        : rows_(rows), lhs_(lhs), rhs_(rhs), layout_(layout), chunks_(layout), scale_(scale), out_(out) {}

    // Tile is the number of vectors that are added up at a time.
    template <int Tile>
    Error run(int64_t threads, int32_t* largest) const {
        if (!chunks_.ok()) return kOutOfMemory;
        with_lanes(chunks_.lanes, [&](auto lanes) {
            for_row_ranges(threads, rows_, layout_.width(), [&](int64_t first, int64_t last) {
                Vector<int32_t, lanes> seen{};
                for (int64_t v = first; v < last; ++v) row<lanes, Tile>(v, chunks_.get(), seen);
                raise(largest, largest_lane<lanes>(seen));
            });
        });
        return nullptr;
    }

  private:
    template <int Lanes, int Tile>
    void row(int64_t v, const Chunk* chunk, Vector<int32_t, Lanes>& seen) const {
        const Chunk* const end = chunks_.get() + chunks_.count;
        for (; end - chunk >= Tile; chunk += Tile) tile<Lanes, Tile>(v, chunk, seen);
        if constexpr (Tile > 1) row<Lanes, Tile / 2>(v, chunk, seen);
    }

    template <int Lanes, int Tile>
    void tile(int64_t v, const Chunk* chunk, Vector<int32_t, Lanes>& seen) const {
        const int64_t begin = rows_.indptr[v], end = rows_.indptr[v + 1];
        if constexpr (kExact) {
            if (end - begin > kExactSums) {
                for (int k = 0; k < Tile; ++k) sum_in_parts<Lanes>(v, chunk + k, seen);
                return;
            }
        }
        Vector<Sum, Lanes> sum[Tile] = {};
        add<Lanes, Tile>(begin, end, chunk, sum);
        for (int k = 0; k < Tile; ++k) finish<Lanes>(v, chunk[k], to_float<Lanes>(sum[k]), seen);
    }

    template <int Lanes>
    __attribute__((noinline)) void sum_in_parts(int64_t v, const Chunk* chunk, Vector<int32_t, Lanes>& seen) const {
        int64_t total[Lanes] = {};
        const int64_t row_end = rows_.indptr[v + 1];
        for (int64_t begin = rows_.indptr[v]; begin < row_end; begin += kExactSums) {
            Vector<Sum, Lanes> sum{};
            add<Lanes, 1>(begin, begin + kExactSums < row_end ? begin + kExactSums : row_end, chunk, &sum);
            Sum part[Lanes];
            put(part, sum);
            for (int i = 0; i < Lanes; ++i) total[i] += static_cast<int64_t>(part[i]);
        }
        float value[Lanes];
        for (int i = 0; i < Lanes; ++i) value[i] = static_cast<float>(total[i]);
        finish<Lanes>(v, *chunk, fetch<float, Lanes, 1>(value), seen);
    }

    template <int Lanes, int Tile>
    __attribute__((always_inline)) void add(int64_t begin, int64_t end, const Chunk* chunk,
                                            Vector<Sum, Lanes>* sum) const {
        constexpr int kVectorsPerLine = vectors_per_line<A>(Lanes);
        const int64_t last = rows_.entries() - 1;
        int64_t at_lhs[Tile], at_rhs[Tile];
        for (int k = 0; k < Tile; ++k) at_lhs[k] = chunk[k].lhs, at_rhs[k] = chunk[k].rhs;
        for (int64_t p = begin; p < end; ++p) {
            const A* const a = lhs_.row(p, layout_.lhs_width);
            const A* const ahead = lhs_.row(p + kAhead < last ? p + kAhead : last, layout_.lhs_width);
            const B* const b = Op::kReadsRhs ? rhs_.row(p, layout_.rhs_width) : nullptr;
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (k % kVectorsPerLine == 0) __builtin_prefetch(ahead + at_lhs[k]);
                const Vector<Sum, Lanes> x = fetch<Sum, Lanes, StepA>(a + at_lhs[k]);
                if constexpr (Op::kReadsRhs) {
                    sum[k] += Op::apply(x, fetch<Sum, Lanes, StepB>(b + at_rhs[k]));
                } else {
                    sum[k] += x;
                }
            }
        }
    }

    template <int Lanes>
    void finish(int64_t v, const Chunk& chunk, Vector<float, Lanes> sum, Vector<int32_t, Lanes>& seen) const {
        sum = out_.put_sums<Lanes>(sum * scale_, v, v * layout_.width() + chunk.out);
        seen = larger(seen, magnitudes<Lanes>(sum));
    }

    const Rows<Index> rows_;
    const Operand<A, Index> lhs_;
    const Operand<B, Index> rhs_;
    const FeatureLayout& layout_;
    const Chunks chunks_;
    const float scale_;
    const RowOutput out_;
};

}  // namespace gqc::GQC_ISA
