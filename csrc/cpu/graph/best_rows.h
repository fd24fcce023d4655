// SPMM with max or min: the best message of each row's entries, and which entry it was.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Vectors that are compared at a time: each takes two registers, of which AVX-512 has 32 and others 16.
constexpr int kBestTile = kWidest == 16 ? 8 : 4;

struct Max {
    template <typename V>
    static auto wins(V x, V best) {
        return x >= best;
    }
};
struct Min {
    template <typename V>
    static auto wins(V x, V best) {
        return x <= best;
    }
};

// Of equal messages the last in the row wins, as in DGL's float32 kernels; NaN wins over every number. Operands of int8
// are compared as integers, and the best one is multiplied with `scale`, which is not negative.
template <typename Order, typename Op, typename A, int StepA, typename B, int StepB, typename Index>
class BestRows {
    using Value = std::conditional_t<std::is_same_v<A, int8_t>, int32_t, float>;

  public:
    BestRows(Rows<Index> rows, const Index* eids, Operand<A, Index> lhs, Operand<B, Index> rhs,
             const FeatureLayout& layout, float scale, float* out, int64_t* arg)
        : rows_(rows),
          eids_(eids),
          lhs_(lhs),
          rhs_(rhs),
          layout_(layout),
          chunks_(layout),
          scale_(scale),
          out_(out),
          arg_(arg) {}

    // Tile is the number of vectors that are compared at a time.
    template <int Tile>
    Error run(int64_t threads) const {
        if (!chunks_.ok()) return kOutOfMemory;
        with_lanes(chunks_.lanes, [&](auto lanes) {
            for_row_ranges(threads, rows_, layout_.width(), [&](int64_t first, int64_t last) {
                for (int64_t v = first; v < last; ++v) row<lanes, Tile>(v);
            });
        });
        return nullptr;
    }

  private:
    template <int Lanes, int Tile>
    void row(int64_t v) const {
        if (rows_.indptr[v] == rows_.indptr[v + 1]) {
            const int64_t width = layout_.width();
            for (int64_t i = v * width; i < (v + 1) * width; ++i) out_[i] = 0.0f * scale_, arg_[i] = -1;
            return;
        }
        const Chunk* chunk = chunks_.get();
        const Chunk* const end = chunk + chunks_.count;
        for (; end - chunk >= Tile; chunk += Tile) tile<Lanes, Tile>(v, chunk);
        if constexpr (Tile > 1) {
            for (; chunk != end; ++chunk) tile<Lanes, 1>(v, chunk);
        }
    }

    template <int Lanes, int Tile>
    void tile(int64_t v, const Chunk* chunk) const {
        constexpr int kVectorsPerLine = vectors_per_line<A>(Lanes);
        const int64_t begin = rows_.indptr[v], end = rows_.indptr[v + 1], last = rows_.entries() - 1;
        Vector<Value, Lanes> best[Tile];
        Vector<int32_t, Lanes> position[Tile] = {};
        for (int k = 0; k < Tile; ++k) best[k] = message<Lanes>(begin, chunk[k]);
        for (int64_t p = begin + 1; p < end; ++p) {
            const Vector<int32_t, Lanes> here = broadcast<Lanes>(static_cast<int32_t>(p - begin));
            const A* const ahead = lhs_.row(p + kAhead < last ? p + kAhead : last, layout_.lhs_width);
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (k % kVectorsPerLine == 0) __builtin_prefetch(ahead + chunk[k].lhs);
                const Vector<Value, Lanes> x = message<Lanes>(p, chunk[k]);
                const auto wins = Order::wins(x, best[k]) | (x != x);
                best[k] = wins ? x : best[k];
                position[k] = wins ? here : position[k];
            }
        }
        const Index* __restrict const eids = eids_ + begin;
        for (int k = 0; k < Tile; ++k) {
            const int64_t at = v * layout_.width() + chunk[k].out;
            put(out_ + at, to_float<Lanes>(best[k]) * scale_);
            int32_t from[Lanes];
            put(from, position[k]);
            int64_t* __restrict const arg = arg_ + at;
            for (int i = 0; i < Lanes; ++i) arg[i] = eids[from[i]];
        }
    }

    template <int Lanes>
    __attribute__((always_inline)) Vector<Value, Lanes> message(int64_t p, const Chunk& chunk) const {
        const Vector<Value, Lanes> x = fetch<Value, Lanes, StepA>(lhs_.row(p, layout_.lhs_width) + chunk.lhs);
        if constexpr (Op::kReadsRhs) {
            return Op::apply(x, fetch<Value, Lanes, StepB>(rhs_.row(p, layout_.rhs_width) + chunk.rhs));
        } else {
            return x;
        }
    }

    const Rows<Index> rows_;
    const Index* const eids_;
    const Operand<A, Index> lhs_;
    const Operand<B, Index> rhs_;
    const FeatureLayout& layout_;
    const Chunks chunks_;
    const float scale_;
    float* const out_;
    int64_t* const arg_;
};

}  // namespace gqc::GQC_ISA
