// SPMM with max or min: the largest or smallest row that the entries of a row read, feature by feature, and whose it
// was.
#pragma once

#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

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

// Of equal values the last in the row wins, as in DGL's float32 kernels; NaN wins over every number. Values of int8 are
// compared as integers, and the best one is multiplied with `scale`, which is not negative.
template <typename Order, typename T, typename Index>
struct BestRows {
    using Value = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
    // Vectors that are compared at a time: each takes two registers, of which AVX-512 has 32 and the others 16.
    static constexpr int kTile = kWidest == 16 ? 8 : 4;

    int64_t threads;
    Rows<Index> rows;
    const Index* eids;
    Operand<T, Index> operand;
    int64_t width;
    float scale;
    float* out;
    int64_t* arg;

    void run() const {
        with_lanes(lanes_for(width), [&](auto lanes) {
            for_row_ranges(threads, rows, width, [&](int64_t first, int64_t last) {
                for (int64_t v = first; v < last; ++v) {
                    if (rows.indptr[v] < rows.indptr[v + 1]) {
                        row<lanes, kTile>(v, 0);
                    } else {
                        for (int64_t i = v * width; i < (v + 1) * width; ++i) out[i] = 0.0f * scale, arg[i] = -1;
                    }
                }
            });
        });
    }

  private:
    // Features from i on; the last vector overlaps the one before it where the width is no multiple.
    template <int Lanes, int Tile>
    void row(int64_t v, int64_t i) const {
        for (; i + Tile * Lanes <= width; i += Tile * Lanes) tile<Lanes, Tile>(v, i);
        if constexpr (Tile > 1) {
            row<Lanes, (Tile > 4 ? 2 : 1)>(v, i);
        } else if (i < width) {
            tile<Lanes, 1>(v, width - Lanes);
        }
    }

    template <int Lanes, int Tile>
    void tile(int64_t v, int64_t i) const {
        const int64_t begin = rows.indptr[v], end = rows.indptr[v + 1], last = rows.entries() - 1;
        Vector<Value, Lanes> best[Tile];
        Vector<int32_t, Lanes> position[Tile] = {};
        const T* const first = operand.row(begin, width) + i;
        for (int k = 0; k < Tile; ++k) best[k] = fetch<Value, Lanes, 1>(first + k * Lanes);
        for (int64_t p = begin + 1; p < end; ++p) {
            const Vector<int32_t, Lanes> here = broadcast<Lanes>(static_cast<int32_t>(p - begin));
            const T* const from = operand.row(p, width) + i;
            const T* const ahead = operand.row(p + kAhead < last ? p + kAhead : last, width) + i;
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (k % vectors_per_line<T>(Lanes) == 0) __builtin_prefetch(ahead + k * Lanes);
                const Vector<Value, Lanes> x = fetch<Value, Lanes, 1>(from + k * Lanes);
                const auto wins = Order::wins(x, best[k]) | (x != x);
                best[k] = wins ? x : best[k];
                position[k] = wins ? here : position[k];
            }
        }
        const Index* __restrict const edge = eids + begin;
        for (int k = 0; k < Tile; ++k) {
            const int64_t at = v * width + i + k * Lanes;
            put(out + at, to_float<Lanes>(best[k]) * scale);
            int32_t winner[Lanes];
            put(winner, position[k]);
            int64_t* __restrict const edge_of = arg + at;
            for (int j = 0; j < Lanes; ++j) edge_of[j] = edge[winner[j]];
        }
    }
};

}  // namespace gqc::GQC_ISA
