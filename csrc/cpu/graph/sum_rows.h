// SPMM with a sum: the messages of a row's entries are added up in registers, a tile of the features at a time.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/row_sums.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Sum of Op(lhs, rhs) in each row, times `scale`. Operands of int8 are added up in int32, others in float, entry after
// entry. Steps are those of FeatureLayout, known to the compiler. Tile is the number of vectors added up at a time.
template <typename Op, typename A, int StepA, typename B, int StepB, int Tile, typename Index>
class SumRows {
    static constexpr bool kExact = std::is_same_v<A, int8_t> && (!Op::kReadsRhs || std::is_same_v<B, int8_t>);
    using Sum = std::conditional_t<kExact, int32_t, float>;

  public:
    SumRows(Rows<Index> rows, Operand<A, Index> lhs, Operand<B, Index> rhs, const FeatureLayout& layout, float scale)
        : rows_(rows),
          lhs_(lhs),
          rhs_(rhs),
          layout_(layout),
          chunks_(layout),
          scale_(scale),
          ahead_(entries_ahead(layout.lhs_width * static_cast<int64_t>(sizeof(A)))),
          whole_lines_(layout.lhs_width * sizeof(A) % 64 == 0) {}

    bool ok() const { return chunks_.ok(); }

    // Writes the sums of rows first .. last, one row behind the other.
    void operator()(int64_t first, int64_t last, float* to) const {
        with_lanes(chunks_.lanes, [&](auto lanes) {
            for (int64_t v = first; v < last; ++v, to += layout_.width()) row<lanes, Tile>(v, chunks_.get(), to);
        });
    }

  private:
    template <int Lanes, int Size>
    void row(int64_t v, const Chunk* chunk, float* to) const {
        const Chunk* const end = chunks_.get() + chunks_.count;
        for (; end - chunk >= Size; chunk += Size) tile<Lanes, Size>(v, chunk, to);
        if constexpr (Size > 1) row<Lanes, (Size > 4 ? 4 : Size - 1)>(v, chunk, to);
    }

    template <int Lanes, int Size>
    void tile(int64_t v, const Chunk* chunk, float* to) const {
        const int64_t begin = rows_.indptr[v], end = rows_.indptr[v + 1];
        if constexpr (kExact) {
            if (end - begin > kExactSums) {
                for (int k = 0; k < Size; ++k) sum_in_parts<Lanes>(v, chunk + k, to);
                return;
            }
        }
        Vector<Sum, Lanes> sum[Size] = {};
        add<Lanes, Size>(begin, end, chunk, sum);
        for (int k = 0; k < Size; ++k) put(to + chunk[k].out, to_float<Lanes>(sum[k]) * scale_);
    }

    template <int Lanes>
    __attribute__((noinline)) void sum_in_parts(int64_t v, const Chunk* chunk, float* to) const {
        int64_t total[Lanes] = {};
        const int64_t row_end = rows_.indptr[v + 1];
        for (int64_t begin = rows_.indptr[v]; begin < row_end; begin += kExactSums) {
            Vector<Sum, Lanes> sum{};
            add<Lanes, 1>(begin, begin + kExactSums < row_end ? begin + kExactSums : row_end, chunk, &sum);
            Sum part[Lanes];
            put(part, sum);
            for (int i = 0; i < Lanes; ++i) total[i] += static_cast<int64_t>(part[i]);
        }
        for (int i = 0; i < Lanes; ++i) to[chunk->out + i] = static_cast<float>(total[i]) * scale_;
    }

    template <int Lanes, int Size>
    __attribute__((always_inline)) void add(int64_t begin, int64_t end, const Chunk* chunk,
                                            Vector<Sum, Lanes>* sum) const {
        const int64_t last = rows_.entries() - 1;
        int64_t at_lhs[Size], at_rhs[Size];
        for (int k = 0; k < Size; ++k) at_lhs[k] = chunk[k].lhs, at_rhs[k] = chunk[k].rhs;
        for (int64_t p = begin; p < end; ++p) {
            const int64_t ahead = p + ahead_ < last ? p + ahead_ : last;
            const A* const a = lhs_.row(p, layout_.lhs_width);
            const A* const next_a = lhs_.row(ahead, layout_.lhs_width);
            const B* const b = Op::kReadsRhs ? rhs_.row(p, layout_.rhs_width) : nullptr;
            const B* const next_b = Op::kReadsRhs ? rhs_.row(ahead, layout_.rhs_width) : nullptr;
            if (!whole_lines_) __builtin_prefetch(next_a + at_lhs[Size - 1] + (StepA ? Lanes - 1 : 0));
            if (Op::kReadsRhs && StepB == 0) __builtin_prefetch(next_b + at_rhs[0]);
#pragma GCC unroll 8
            for (int k = 0; k < Size; ++k) {
                if (k % vectors_per_line<A>(Lanes) == 0) __builtin_prefetch(next_a + at_lhs[k]);
                const Vector<Sum, Lanes> x = fetch<Sum, Lanes, StepA>(a + at_lhs[k]);
                if constexpr (Op::kReadsRhs) {
                    if (StepB && k % vectors_per_line<B>(Lanes) == 0) __builtin_prefetch(next_b + at_rhs[k]);
                    sum[k] += Op::apply(x, fetch<Sum, Lanes, StepB>(b + at_rhs[k]));
                } else {
                    sum[k] += x;
                }
            }
        }
    }

    const Rows<Index> rows_;
    const Operand<A, Index> lhs_;
    const Operand<B, Index> rhs_;
    const FeatureLayout& layout_;
    const Chunks chunks_;
    const float scale_;
    const int64_t ahead_;
    const bool whole_lines_;
};

}  // namespace gqc::GQC_ISA
