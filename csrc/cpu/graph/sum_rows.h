// SPMM with a sum: the messages of a row's entries are added up in registers, a tile of the features at a time.
#pragma once

#include "cpu/float24.h"
#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/split_sums.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// As fetch(), also from bfloat16 and float24.
template <typename T, int Lanes, int Step, typename From>
inline Vector<T, Lanes> fetch_as(const From* p) {
    return fetch<T, Lanes, Step>(p);
}
template <typename T, int Lanes, int Step>
inline Vector<float, Lanes> fetch_as(const bfloat16* p) {
    static_assert(Step == 1);
    Vector<float, Lanes> out;
    if constexpr (Lanes == 1) {
        out = load(*p);
    } else {
        Vector<uint16_t, Lanes> halves;
        std::memcpy(&halves, p, sizeof halves);
        const auto bits = __builtin_convertvector(halves, Vector<uint32_t, Lanes>) << 16;
        std::memcpy(&out, &bits, sizeof out);
    }
    return out;
}

template <typename T, int Lanes, int Step>
inline Vector<float, Lanes> fetch_as(const float24* p) {
    static_assert(Step == 1);
    return load_lanes<Lanes>(p);
}

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

    // Writes the sums of rows first .. last, each of at most kSplit entries, one row behind the other.
    void operator()(int64_t first, int64_t last, float* to) const {
        with_lanes(chunks_.lanes, [&](auto lanes) {
            for (int64_t v = first; v < last; ++v, to += layout_.width())
                row<lanes, kMost<lanes>>({rows_.indptr[v], rows_.indptr[v + 1], kExact, scale_}, chunks_.get(), to);
        });
    }

    // What join() makes sums of: those of entries begin .. end, at most kSplit, without the scale.
    void part(int64_t begin, int64_t end, Partial* to) const {
        with_lanes(chunks_.lanes, [&](auto lanes) {
            row<lanes, kMost<lanes>>({begin, end, false, 1.0f}, chunks_.get(), reinterpret_cast<float*>(to));
        });
    }

    // The sums of a row whose `parts` parts are given, one behind the other.
    void join(const Partial* parts, int64_t count, float* to) const {
        join_parts<Sum>(parts, count, layout_.width(), scale_, to);
    }

  private:
    struct Entries {
        int64_t begin, end;
        bool converts;  // exact sums to floats
        float scale;
    };

    // Vectors of a tile. Vectors that are not the widest hold rows that have at most 3 of them, unless operands
    // broadcast.
    template <int Lanes>
    static constexpr int kMost = Op::kReadsRhs || Lanes == kWidest ? Tile : 3;

    template <int Lanes, int Size>
    void row(const Entries& entries, const Chunk* chunk, float* to) const {
        const Chunk* const end = chunks_.get() + chunks_.count;
        for (; end - chunk >= Size; chunk += Size) tile<Lanes, Size>(entries, chunk, to);
        if constexpr (Size > 1) row<Lanes, (Size > 4 ? 4 : Size - 1)>(entries, chunk, to);
    }

    template <int Lanes, int Size>
    void tile(const Entries& entries, const Chunk* chunk, float* to) const {
        Vector<Sum, Lanes> sum[Size] = {};
        add<Lanes, Size>(entries.begin, entries.end, chunk, sum);
        if (kExact && !entries.converts)
            for (int k = 0; k < Size; ++k) put(to + chunk[k].out, sum[k]);
        else
            for (int k = 0; k < Size; ++k) put(to + chunk[k].out, to_float<Lanes>(sum[k]) * entries.scale);
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
                const Vector<Sum, Lanes> x = fetch_as<Sum, Lanes, StepA>(a + at_lhs[k]);
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
