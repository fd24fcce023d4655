// Sums of rows of features whose heads have weights of their own: sum[h][i] += weight[h] * row[h][i].
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

// a * b + c, in one rounding where the processor can.
template <int Lanes>
inline Vector<float, Lanes> multiply_add(Vector<float, Lanes> a, Vector<float, Lanes> b, Vector<float, Lanes> c) {
#if defined(__AVX512F__)
    if constexpr (Lanes == 16) return (Vector<float, 16>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#endif
#if defined(__AVX2__)
    if constexpr (Lanes == 8) return (Vector<float, 8>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    if constexpr (Lanes == 4) return (Vector<float, 4>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#endif
    return a * b + c;
}

// Rows of features, int8 or float.
struct Features {
    const void* data;
    bool is_int8;
};

// Entries begin .. end of a matrix, of which entry p reads row rows[p] of x with the weights
// weights[(p - begin) * heads + h]. Weights are readable for a vector behind the last one.
template <typename T, typename Index>
struct TypedWeightedRows {
    const T* x;
    const Index* rows;
    int64_t begin, end, last;  // rows[last] is the last one that may be fetched into the cache
    const float* weights;
};

// Likewise, of types that are known only at run time.
struct WeightedRows {
    Features x;
    AnyIndices rows;
    int64_t begin, end, last;
    const float* weights;

    // Calls body(the rows with the type of their indices), of features of type T.
    template <typename T, typename Body>
    void with_index(const Body& body) const {
        rows.with_type([&](auto* numbers) {
            using Index = std::remove_const_t<std::remove_pointer_t<decltype(numbers)>>;
            body(TypedWeightedRows<T, Index>{static_cast<const T*>(x.data), numbers, begin, end, last, weights});
        });
    }

    // Calls body(the rows with all types).
    template <typename Body>
    void with_types(const Body& body) const {
        x.is_int8 ? with_index<int8_t>(body) : with_index<float>(body);
    }
};

// The largest magnitude() in vectors of any number of lanes.
class LargestSeen {
  public:
    template <int Lanes>
    void see(Vector<float, Lanes> x) {
        put(lanes_, larger(magnitudes<Lanes>(x), fetch<int32_t, Lanes, 1>(lanes_)));
    }
    int32_t get() const { return largest_lane<kWidest>(fetch<int32_t, kWidest, 1>(lanes_)); }

  private:
    int32_t lanes_[kWidest] = {};
};

// Rows are `heads` runs of `width` features. They are cut into vectors, of which the last is moved back so that it ends
// with the row; what it shares with the one before it is computed twice. Some vectors at a time, a tile, are added up
// in registers over all entries. Where the features of a vector all belong to one head its weight is one number, else
// weights are moved to their places.
class HeadSums {
    static constexpr int kTile = 8, kMovedTile = 4;

  public:
    HeadSums(int64_t heads, int64_t width)
        : heads(heads),
          width(width),
          row_(heads * width),
          lanes_(lanes_for(row_)),
          vectors_((row_ + lanes_ - 1) / lanes_),
          of_a_head_(heads == 1            ? vectors_
                     : width % lanes_ == 0 ? width / lanes_
                                           : 0),
          places_(of_a_head_ ? 0 : vectors_ * lanes_) {
        if (!ok() || of_a_head_) return;
        for (int64_t k = 0; k < vectors_; ++k) {
            for (int64_t i = 0; i < lanes_; ++i)
                places_[k * lanes_ + i] = static_cast<int32_t>((first(k) + i) / width - first(k) / width);
        }
    }

    bool ok() const { return places_.ok(); }

    // Floats that sums in memory take: they are kept by vector.
    int64_t size() const { return vectors_ * lanes_; }

    // Adds the rows to sums in memory. With Prefetch, rows are fetched into the cache.
    template <bool Prefetch>
    __attribute__((noinline)) void add(const WeightedRows& rows, float* sums) const {
        rows.with_types([&](const auto& typed) { for_tiles<Prefetch>(typed, Partial{sums}); });
    }

    // to[h * width + i] = sum over the rows * factors[h]. Factors are readable like weights.
    template <bool Prefetch>
    void write(const WeightedRows& rows, const float* factors, float* to, bool streamed, LargestSeen& seen) const {
        const int64_t bounds[] = {rows.begin, rows.end};
        write_all<Prefetch>(rows, 1, bounds, factors, 0, to, streamed, seen);
    }

    // Likewise `count` results, one behind the other, number i over the rows bounds[i] .. bounds[i + 1] with the
    // factors from i * factors_step on.
    template <bool Prefetch>
    __attribute__((noinline)) void write_all(const WeightedRows& rows, int64_t count, const int64_t* bounds,
                                             const float* factors, int64_t factors_step, float* to, bool streamed,
                                             LargestSeen& seen) const {
        rows.with_types([&](const auto& typed) {
            auto part = typed;
            for (int64_t i = 0; i < count; ++i) {
                part.begin = bounds[i], part.end = bounds[i + 1];
                part.weights = typed.weights + (bounds[i] - typed.begin) * heads;
                for_tiles<Prefetch>(part, Scaled{factors + i * factors_step, to + i * row_, streamed, seen});
            }
        });
    }

    // Whether `count` results from `to` on are to be written past the caches; end_stream() ends that.
    bool is_streamed(const float* to, int64_t count) const {
        const bool fits = lanes_ == kWidest && row_ % lanes_ == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
        return fits && gqc::GQC_ISA::is_streamed(count * row_ * static_cast<int64_t>(sizeof(float)));
    }

    // As write, of sums in memory.
    void write_sums(const float* sums, const float* factors, float* to, LargestSeen& seen) const {
        with_lanes(lanes_, [&](auto lanes) {
            for (int64_t k = 0; k < vectors_; ++k) {
                const auto value = fetch<float, lanes, 1>(sums + k * lanes) * weight<lanes>(factors, k);
                put(to + first(k), value);
                seen.see<lanes>(value);
            }
        });
    }

    // sums = sums * old[h] + added * of_added[h].
    void join(float* sums, const float* old, const float* added, const float* of_added) const {
        with_lanes(lanes_, [&](auto lanes) {
            for (int64_t k = 0; k < vectors_; ++k) {
                float* const sum = sums + k * lanes;
                put(sum, fetch<float, lanes, 1>(sum) * weight<lanes>(old, k) +
                             fetch<float, lanes, 1>(added + k * lanes) * weight<lanes>(of_added, k));
            }
        });
    }

    const int64_t heads, width;

  private:
    // What becomes of a tile's sums: they are added to sums in memory, ..
    struct Partial {
        float* sums;

        template <int Lanes>
        Vector<float, Lanes> start(int64_t vector) const {
            return fetch<float, Lanes, 1>(sums + vector * Lanes);
        }
        template <int Lanes, typename WeightOf>
        void finish(int64_t vector, int64_t, Vector<float, Lanes> sum, const WeightOf&) const {
            put(sums + vector * Lanes, sum);
        }
    };
    // .. or multiplied with a factor for each head and written.
    struct Scaled {
        const float* factors;
        float* to;
        bool streamed;
        LargestSeen& seen;

        template <int Lanes>
        Vector<float, Lanes> start(int64_t) const {
            return Vector<float, Lanes>{};
        }
        template <int Lanes, typename WeightOf>
        void finish(int64_t, int64_t feature, Vector<float, Lanes> sum, const WeightOf& factor_of) const {
            const Vector<float, Lanes> value = sum * factor_of(factors);
            if (Lanes == kWidest && streamed) {
                stream_vector(&value, to + feature);
            } else {
                put(to + feature, value);
            }
            seen.see<Lanes>(value);
        }
    };

    // The first feature of a vector.
    int64_t first(int64_t vector) const { return (vector + 1) * lanes_ <= row_ ? vector * lanes_ : row_ - lanes_; }

    template <int Lanes>
    Vector<float, Lanes> weight(const float* weights, int64_t vector) const {
        if (of_a_head_) return broadcast<Lanes>(weights[vector / of_a_head_]);
        return at_places<Lanes>(weights + first(vector) / width, places<Lanes>(vector));
    }

    template <int Lanes>
    Vector<int32_t, Lanes> places(int64_t vector) const {
        return fetch<int32_t, Lanes, 1>(places_.get() + vector * Lanes);
    }

    template <int Lanes>
    static Vector<float, Lanes> at_places(const float* weights, Vector<int32_t, Lanes> places) {
        const auto read = fetch<float, Lanes, 1>(weights);
        if constexpr (Lanes == 1)
            return read;
        else
            return __builtin_shuffle(read, places);
    }

    template <bool Prefetch, typename R, typename Sink>
    void for_tiles(const R& rows, const Sink& sink) const {
        with_lanes(lanes_, [&](auto lanes) {
            if (!of_a_head_) return moved<lanes, Prefetch>(rows, sink);
            if constexpr (lanes == kWidest) {
                const bool whole = width % lanes == 0;
                if (whole && of_a_head_ == 1) return whole_heads<lanes, 1, Prefetch>(rows, sink);
                if (whole && of_a_head_ == 2) return whole_heads<lanes, 2, Prefetch>(rows, sink);
                if (whole && of_a_head_ == 4) return whole_heads<lanes, 4, Prefetch>(rows, sink);
            }
            parts_of_heads<lanes, Prefetch>(rows, sink);
        });
    }

    // Heads of Of vectors: as many whole heads at a time as a tile holds.
    template <int Lanes, int Of, bool Prefetch, typename R, typename Sink>
    void whole_heads(const R& rows, const Sink& sink) const {
        int64_t h = 0;
        for (; h + kTile / Of <= heads; h += kTile / Of) tile<Lanes, Of, kTile, Prefetch>(rows, sink, h * Of, h);
        for (; h < heads; ++h) tile<Lanes, Of, Of, Prefetch>(rows, sink, h * Of, h);
    }

    // Heads of any number of vectors.
    template <int Lanes, bool Prefetch, typename R, typename Sink>
    void parts_of_heads(const R& rows, const Sink& sink) const {
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t end = (h + 1) * of_a_head_;
            int64_t k = h * of_a_head_;
            for (; k + kTile <= end; k += kTile) tile<Lanes, kTile, kTile, Prefetch>(rows, sink, k, h);
            for (; k + 3 <= end; k += 3) tile<Lanes, 3, 3, Prefetch>(rows, sink, k, h);
            for (; k < end; ++k) tile<Lanes, 1, 1, Prefetch>(rows, sink, k, h);
        }
    }

    // Vectors with features of several heads.
    template <int Lanes, bool Prefetch, typename R, typename Sink>
    void moved(const R& rows, const Sink& sink) const {
        int64_t k = 0;
        for (; k + kMovedTile <= vectors_; k += kMovedTile) moved_tile<Lanes, kMovedTile, Prefetch>(rows, sink, k);
        for (; k < vectors_; ++k) moved_tile<Lanes, 1, Prefetch>(rows, sink, k);
    }

    // Tile vectors from `vector` on, Of of them for each head from `head` on.
    template <int Lanes, int Of, int Tile, bool Prefetch, typename R, typename Sink>
    void tile(const R& rows, const Sink& sink, int64_t vector, int64_t head) const {
        add_rows<Lanes, Tile, Prefetch>(rows, sink, vector, [head](const float* weights, int k) {
            return broadcast<Lanes>(weights[head + k / Of]);
        });
    }

    template <int Lanes, int Tile, bool Prefetch, typename R, typename Sink>
    void moved_tile(const R& rows, const Sink& sink, int64_t vector) const {
        Vector<int32_t, Lanes> place[Tile];
        int64_t head[Tile];
        for (int k = 0; k < Tile; ++k) {
            place[k] = places<Lanes>(vector + k);
            head[k] = first(vector + k) / width;
        }
        add_rows<Lanes, Tile, Prefetch>(rows, sink, vector, [&](const float* weights, int k) {
            return at_places<Lanes>(weights + head[k], place[k]);
        });
    }

    template <int Lanes, int Tile, bool Prefetch, typename T, typename Index, typename Sink, typename WeightOf>
    __attribute__((always_inline)) void add_rows(const TypedWeightedRows<T, Index>& rows, const Sink& sink,
                                                 int64_t vector, const WeightOf& weight_of) const {
        Vector<float, Lanes> sum[Tile];
#pragma GCC unroll 8
        for (int k = 0; k < Tile; ++k) sum[k] = sink.template start<Lanes>(vector + k);
        // All vectors of a tile but the last one of the row stand side by side.
        const int64_t last_vector = first(vector + Tile - 1) - first(vector);
        const T* const x = rows.x + first(vector);
        const float* weights = rows.weights;
        const int64_t bytes = row_ * static_cast<int64_t>(sizeof(T)), distance = entries_ahead(bytes);
        const bool is_split = Prefetch && bytes % 64;  // rows may end in a cache line of their own
        for (int64_t p = rows.begin; p < rows.end; ++p, weights += heads) {
            const T* const row = x + static_cast<int64_t>(rows.rows[p]) * row_;
            const int64_t ahead = p + distance < rows.last ? p + distance : rows.last;
            const T* const next = x + static_cast<int64_t>(rows.rows[ahead]) * row_;
            if (is_split) __builtin_prefetch(next + last_vector + Lanes - 1);
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (Prefetch && k % vectors_per_line<T>(Lanes) == 0) __builtin_prefetch(next + k * Lanes);
                const T* const from = row + (k + 1 < Tile || Tile == 1 ? k * Lanes : last_vector);
                sum[k] = multiply_add<Lanes>(fetch<float, Lanes, 1>(from), weight_of(weights, k), sum[k]);
            }
        }
#pragma GCC unroll 8
        for (int k = 0; k < Tile; ++k) {
            const int64_t feature = first(vector) + (k + 1 < Tile || Tile == 1 ? k * Lanes : last_vector);
            sink.template finish<Lanes>(vector + k, feature, sum[k],
                                        [&](const float* factors) { return weight_of(factors, k); });
        }
    }

    const int64_t row_;
    const int lanes_;
    const int64_t vectors_;
    const int64_t of_a_head_;  // vectors of a head, 0 if a vector may hold several heads
    const Buffer<int32_t> places_;
};

}  // namespace gqc::GQC_ISA
