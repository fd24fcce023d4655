// SPMM with max or min: the largest or smallest row that the entries of a row read, feature by feature, and whose it
// was.
#pragma once

#include "cpu/graph/rows.h"
#include "cpu/graph/split_rows.h"
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
    // The best values of a part of a row, as int32 for int8, then their positions in the row.
    using Partial = int32_t;
    int64_t partial_size() const { return 2 * width; }

    Rows<Index> rows;
    const Index* eids;
    Operand<T, Index> operand;
    int64_t width;
    float scale;
    float* out;
    int64_t* arg;
};

template <typename Order, typename T, typename Index>
class BestRowsWorker {
    using Value = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
    // Vectors that are compared at a time: each takes two registers, of which AVX-512 has 32 and the others 16.
    static constexpr int kTile = kWidest == 16 ? 8 : 4;

  public:
    explicit BestRowsWorker(const BestRows<Order, T, Index>& job) : job_(job), lanes_(lanes_for(job.width)) {}

    bool ok() const { return true; }

    void rows(int64_t first, int64_t last) const {
        const Index* const indptr = job_.rows.indptr;
        with_lanes(lanes_, [&](auto lanes) {
            for (int64_t v = first; v < last; ++v) {
                if (indptr[v] < indptr[v + 1]) {
                    for_tiles<lanes, kTile>(0, [&](auto tile, int64_t i) {
                        write(v, i, best_of<lanes, tile>(v, indptr[v], indptr[v + 1], i));
                    });
                } else {
                    const int64_t end = (v + 1) * job_.width;
                    for (int64_t i = v * job_.width; i < end; ++i) job_.out[i] = 0.0f * job_.scale, job_.arg[i] = -1;
                }
            }
        });
    }

    void part(int64_t v, int64_t begin, int64_t end, int32_t* partial) const {
        with_lanes(lanes_, [&](auto lanes) {
            for_tiles<lanes, kTile>(0, [&](auto tile, int64_t i) {
                const Best<lanes, tile> best = best_of<lanes, tile>(v, begin, end, i);
                for (int k = 0; k < tile; ++k) {
                    put(partial + i + k * lanes, best.value[k]);
                    put(partial + job_.width + i + k * lanes, best.position[k]);
                }
            });
        });
    }

    void join(int64_t v, const int32_t* partials, int64_t parts) const {
        with_lanes(lanes_, [&](auto lanes) {
            for_tiles<lanes, 1>(0, [&](auto, int64_t i) {
                const int32_t* from = partials + i;
                Best<lanes, 1> best{{value_at<lanes>(from)}, {position_at<lanes>(from)}};
                for (int64_t part = 1; part < parts; ++part) {
                    from += job_.partial_size();
                    best.take(0, value_at<lanes>(from), position_at<lanes>(from));
                }
                write(v, i, best);
            });
        });
    }

  private:
    // Of Tile vectors of features: the best values so far, and the positions in their row of the entries that have
    // them.
    template <int Lanes, int Tile>
    struct Best {
        Vector<Value, Lanes> value[Tile];
        Vector<int32_t, Lanes> position[Tile];

        // Values behind those that were taken before.
        void take(int k, Vector<Value, Lanes> x, Vector<int32_t, Lanes> here) {
            const auto wins = Order::wins(x, value[k]) | (x != x);
            value[k] = wins ? x : value[k];
            position[k] = wins ? here : position[k];
        }
    };

    // Calls body(vectors of a tile, its first feature) for features from i on; the last vector overlaps the one before
    // it where the width is no multiple.
    template <int Lanes, int Tile, typename Body>
    void for_tiles(int64_t i, const Body& body) const {
        constexpr std::integral_constant<int, Tile> tile;
        for (; i + Tile * Lanes <= job_.width; i += Tile * Lanes) body(tile, i);
        if constexpr (Tile > 1) {
            for_tiles<Lanes, (Tile > 4 ? 2 : 1)>(i, body);
        } else if (i < job_.width) {
            body(tile, job_.width - Lanes);
        }
    }

    // Of entries begin .. end of row v, of which there is one at least.
    template <int Lanes, int Tile>
    __attribute__((always_inline)) Best<Lanes, Tile> best_of(int64_t v, int64_t begin, int64_t end, int64_t i) const {
        const int64_t row = job_.rows.indptr[v], last = job_.rows.entries() - 1;
        Best<Lanes, Tile> best;
        const T* const first = job_.operand.row(begin, job_.width) + i;
        for (int k = 0; k < Tile; ++k) {
            best.value[k] = fetch<Value, Lanes, 1>(first + k * Lanes);
            best.position[k] = broadcast<Lanes>(static_cast<int32_t>(begin - row));
        }
        for (int64_t p = begin + 1; p < end; ++p) {
            const Vector<int32_t, Lanes> here = broadcast<Lanes>(static_cast<int32_t>(p - row));
            const T* const from = job_.operand.row(p, job_.width) + i;
            const T* const ahead = job_.operand.row(p + kAhead < last ? p + kAhead : last, job_.width) + i;
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (k % vectors_per_line<T>(Lanes) == 0) __builtin_prefetch(ahead + k * Lanes);
                best.take(k, fetch<Value, Lanes, 1>(from + k * Lanes), here);
            }
        }
        return best;
    }

    template <int Lanes, int Tile>
    void write(int64_t v, int64_t i, const Best<Lanes, Tile>& best) const {
        const Index* __restrict const edge = job_.eids + job_.rows.indptr[v];
        for (int k = 0; k < Tile; ++k) {
            const int64_t at = v * job_.width + i + k * Lanes;
            put(job_.out + at, to_float<Lanes>(best.value[k]) * job_.scale);
            int32_t winner[Lanes];
            put(winner, best.position[k]);
            int64_t* __restrict const edge_of = job_.arg + at;
            for (int j = 0; j < Lanes; ++j) edge_of[j] = edge[winner[j]];
        }
    }

    // What part() wrote.
    template <int Lanes>
    static Vector<Value, Lanes> value_at(const int32_t* partial) {
        Vector<Value, Lanes> x;
        std::memcpy(&x, partial, sizeof x);
        return x;
    }
    template <int Lanes>
    Vector<int32_t, Lanes> position_at(const int32_t* partial) const {
        return fetch<int32_t, Lanes, 1>(partial + job_.width);
    }

    const BestRows<Order, T, Index>& job_;
    const int lanes_;
};

}  // namespace gqc::GQC_ISA
