// SPMM with max or min: the largest or smallest row that the entries of a row read, feature by feature, and whose it
// was.
#pragma once

#include "common/buffer.h"
#include "cpu/graph/best.h"
#include "cpu/graph/best_bytes.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/split_rows.h"
#include "cpu/graph/vector.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

// Of equal values the last in the row wins, as in DGL's float32 kernels for AVX-512; NaN wins over every number. Values
// of int8 are compared as integers, and the best one is multiplied with `scale`, which is not negative.
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
    bool streamed;  // results go past the caches
};

template <typename Order, typename T, typename Index>
class BestRowsWorker {
    using Value = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;
    // Vectors that are compared at a time: each takes two registers, of which AVX-512 has 32 and the others 16.
    static constexpr int kTile = kWidest == 16 ? 8 : 4;

  public:
    explicit BestRowsWorker(const BestRows<Order, T, Index>& job)
        : job_(job),
          lanes_(lanes_for(job.width)),
          values_(job.width),
          positions_(job.width),
          results_(job.width),
          edges_(job.width) {}
    ~BestRowsWorker() {
        if (job_.streamed) end_stream();
    }

    bool ok() const { return values_.ok() && positions_.ok() && results_.ok() && edges_.ok(); }

    void rows(int64_t first, int64_t last) const {
        const Index* const indptr = job_.rows.indptr;
        for (int64_t v = first; v < last; ++v) {
            if (indptr[v] < indptr[v + 1]) {
                find(v, indptr[v], indptr[v + 1], values_.get(), positions_.get());
                write(v);
            } else {
                const int64_t end = (v + 1) * job_.width;
                for (int64_t i = v * job_.width; i < end; ++i) job_.out[i] = 0.0f * job_.scale, job_.arg[i] = -1;
            }
        }
    }

    void part(int64_t v, int64_t begin, int64_t end, int32_t* partial) const {
        find(v, begin, end, reinterpret_cast<Value*>(partial), partial + job_.width);
    }

    void join(int64_t v, const int32_t* partials, int64_t parts) const {
        const int64_t width = job_.width;
        std::memcpy(values_.get(), partials, static_cast<size_t>(width) * sizeof(Value));
        std::memcpy(positions_.get(), partials + width, static_cast<size_t>(width) * sizeof(int32_t));
        for (int64_t part = 1; part < parts; ++part) {
            partials += job_.partial_size();
            with_lanes(lanes_, [&](auto lanes) {
                for_tiles<lanes, 1>(0, [&](auto, int64_t i) {
                    Best<lanes, 1> best(values_.get() + i, positions_.get() + i);
                    Vector<Value, lanes> x;
                    std::memcpy(&x, partials + i, sizeof x);
                    best.take(0, x, fetch<int32_t, lanes, 1>(partials + width + i));
                    best.put_to(values_.get() + i, positions_.get() + i);
                });
            });
        }
        write(v);
    }

  private:
    // Of Tile vectors of features: the best values so far, and the positions in their row of the entries that have
    // them.
    template <int Lanes, int Tile>
    struct Best {
        Vector<Value, Lanes> value[Tile];
        Vector<int32_t, Lanes> position[Tile];

        Best(const Value* values, const int32_t* positions) {
            for (int k = 0; k < Tile; ++k) {
                value[k] = fetch<Value, Lanes, 1>(values + k * Lanes);
                position[k] = fetch<int32_t, Lanes, 1>(positions + k * Lanes);
            }
        }
        // Those of one entry.
        Best(const T* values, int32_t here) {
            for (int k = 0; k < Tile; ++k) {
                value[k] = fetch<Value, Lanes, 1>(values + k * Lanes);
                position[k] = broadcast<Lanes>(here);
            }
        }

        // Values behind those that were taken before.
        void take(int k, Vector<Value, Lanes> x, Vector<int32_t, Lanes> here) {
            take_better<Order>(x, here, value[k], position[k]);
        }

        void put_to(Value* values, int32_t* positions) const {
            for (int k = 0; k < Tile; ++k) {
                put(values + k * Lanes, value[k]);
                put(positions + k * Lanes, position[k]);
            }
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

    // The best values of entries begin .. end of row v, of which there is one at least, and their positions in the row.
    void find(int64_t v, int64_t begin, int64_t end, Value* values, int32_t* positions) const {
        if constexpr (std::is_same_v<T, int8_t>) {
            using Bytes = BestBytes<Order, Index>;
            if (job_.width >= Bytes::kLeastWidth)
                return Bytes(job_.rows, job_.operand, job_.width)(job_.rows.indptr[v], begin, end, values, positions);
        }
        with_lanes(lanes_, [&](auto lanes) {
            for_tiles<lanes, kTile>(0, [&](auto tile, int64_t i) {
                best_of<lanes, tile>(v, begin, end, i).put_to(values + i, positions + i);
            });
        });
    }

    // Of entries begin .. end of row v, of which there is one at least.
    template <int Lanes, int Tile>
    __attribute__((always_inline)) Best<Lanes, Tile> best_of(int64_t v, int64_t begin, int64_t end, int64_t i) const {
        const int64_t row = job_.rows.indptr[v], last = job_.rows.entries() - 1;
        Best<Lanes, Tile> best(job_.operand.row(begin, job_.width) + i, static_cast<int32_t>(begin - row));
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

    // Writes what values_ and positions_ hold.
    void write(int64_t v) const {
        const int64_t width = job_.width;
        float* const out = job_.out + v * width;
        int64_t* const arg = job_.arg + v * width;
        float* const values = job_.streamed ? results_.get() : out;
        for (int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(values_[i]) * job_.scale;
        int64_t* const edges = job_.streamed ? edges_.get() : arg;
        const Index* const edge = job_.eids + job_.rows.indptr[v];
        for (int64_t i = 0; i < width; ++i) edges[i] = edge[positions_[i]];
        if (!job_.streamed) return;
        stream(values, width * static_cast<int64_t>(sizeof(float)), out);
        stream(edges, width * static_cast<int64_t>(sizeof(int64_t)), arg);
    }

    const BestRows<Order, T, Index>& job_;
    const int lanes_;
    const Buffer<Value> values_;
    const Buffer<int32_t> positions_;
    const Buffer<float> results_;
    const Buffer<int64_t> edges_;
};

}  // namespace gqc::GQC_ISA
