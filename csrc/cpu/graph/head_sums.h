// Sums of rows of features whose heads have weights of their own: sum[h][i] += weight[h] * row[h][i].
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

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

// Rows are `heads` runs of `width` features. They are cut into vectors, of which the last is moved back so that it ends
// with the row; what it shares with the one before it is computed twice. So sums are kept by vector, see size(). Where
// the features of a vector all belong to one head its weight is one number, else weights are moved to their places.
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

    // Floats that the sums of a row take.
    int64_t size() const { return vectors_ * lanes_; }

    // Adds weights[(p - begin) * heads + h] * x[rows[p]][h] to the sums, p = begin .. end. Weights are readable for a
    // vector behind the last one. With Prefetch, rows are fetched into the cache, none behind rows[last].
    template <bool Prefetch, typename T, typename Index>
    void add(const T* x, const Index* rows, int64_t begin, int64_t end, int64_t last, const float* weights,
             float* sums) const {
        const Entries<T, Index> entries{x, rows, begin, end, last, weights, sums};
        with_lanes(lanes_, [&](auto lanes) {
            if (!of_a_head_) return moved<lanes, Prefetch>(entries);
            if constexpr (lanes == kWidest) {
                const bool whole = width % lanes == 0;
                if (whole && of_a_head_ == 1) return whole_heads<lanes, 1, Prefetch>(entries);
                if (whole && of_a_head_ == 2) return whole_heads<lanes, 2, Prefetch>(entries);
                if (whole && of_a_head_ == 4) return whole_heads<lanes, 4, Prefetch>(entries);
            }
            parts_of_heads<lanes, Prefetch>(entries);
        });
    }

    // to[h * width + i] = sums * factors[h], which are readable like weights; `seen` is raised to the largest
    // magnitude().
    void scale(const float* sums, const float* factors, float* to, int32_t& seen) const {
        with_lanes(lanes_, [&](auto lanes) {
            Vector<int32_t, lanes> largest{};
            for (int64_t k = 0; k < vectors_; ++k) {
                const auto factor = weight<lanes>(factors, k);
                const auto value = fetch<float, lanes, 1>(sums + k * lanes) * factor;
                put(to + first(k), value);
                largest = larger(largest, magnitudes<lanes>(value));
            }
            seen = larger(seen, largest_lane<lanes>(largest));
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
    template <typename T, typename Index>
    struct Entries {
        const T* x;
        const Index* rows;
        int64_t begin, end, last;
        const float* weights;
        float* sums;
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

    // Heads of Of vectors: as many whole heads at a time as a tile holds.
    template <int Lanes, int Of, bool Prefetch, typename E>
    void whole_heads(const E& entries) const {
        int64_t h = 0;
        for (; h + kTile / Of <= heads; h += kTile / Of) tile<Lanes, Of, kTile, Prefetch>(entries, h * Of, h);
        for (; h < heads; ++h) tile<Lanes, Of, Of, Prefetch>(entries, h * Of, h);
    }

    // Heads of any number of vectors.
    template <int Lanes, bool Prefetch, typename E>
    void parts_of_heads(const E& entries) const {
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t end = (h + 1) * of_a_head_, even = end * Lanes <= row_ ? end : end - 1;
            int64_t k = h * of_a_head_;
            for (; k + kTile <= even; k += kTile) tile<Lanes, kTile, kTile, Prefetch>(entries, k, h);
            for (; k + 2 <= even; k += 2) tile<Lanes, 2, 2, Prefetch>(entries, k, h);
            for (; k < end; ++k) tile<Lanes, 1, 1, Prefetch>(entries, k, h);
        }
    }

    // Vectors with features of several heads.
    template <int Lanes, bool Prefetch, typename E>
    void moved(const E& entries) const {
        int64_t k = 0;
        for (; (k + kMovedTile) * Lanes <= row_; k += kMovedTile) moved_tile<Lanes, kMovedTile, Prefetch>(entries, k);
        for (; k < vectors_; ++k) moved_tile<Lanes, 1, Prefetch>(entries, k);
    }

    // Tile vectors from `vector` on, which stand side by side, Of of them for each head from `head` on.
    template <int Lanes, int Of, int Tile, bool Prefetch, typename E>
    void tile(const E& entries, int64_t vector, int64_t head) const {
        add_rows<Lanes, Tile, Prefetch>(entries, vector, entries.weights + head,
                                        [](const float* weights, int k) { return broadcast<Lanes>(weights[k / Of]); });
    }

    template <int Lanes, int Tile, bool Prefetch, typename E>
    void moved_tile(const E& entries, int64_t vector) const {
        Vector<int32_t, Lanes> place[Tile];
        int64_t head[Tile];
        for (int k = 0; k < Tile; ++k) {
            place[k] = places<Lanes>(vector + k);
            head[k] = first(vector + k) / width;
        }
        add_rows<Lanes, Tile, Prefetch>(entries, vector, entries.weights, [&](const float* weights, int k) {
            return at_places<Lanes>(weights + head[k], place[k]);
        });
    }

    template <int Lanes, int Tile, bool Prefetch, typename T, typename Index, typename WeightOf>
    __attribute__((always_inline)) void add_rows(const Entries<T, Index>& entries, int64_t vector, const float* weights,
                                                 const WeightOf& weight_of) const {
        Vector<float, Lanes> sum[Tile];
        float* const sums = entries.sums + vector * Lanes;
        for (int k = 0; k < Tile; ++k) sum[k] = fetch<float, Lanes, 1>(sums + k * Lanes);
        const T* const x = entries.x + first(vector);
        for (int64_t p = entries.begin; p < entries.end; ++p, weights += heads) {
            const T* const row = x + static_cast<int64_t>(entries.rows[p]) * row_;
            const int64_t ahead = p + kAhead < entries.last ? p + kAhead : entries.last;
            const T* const next = x + static_cast<int64_t>(entries.rows[ahead]) * row_;
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                if (Prefetch && k % vectors_per_line<T>(Lanes) == 0) __builtin_prefetch(next + k * Lanes);
                sum[k] = multiply_add<Lanes>(fetch<float, Lanes, 1>(row + k * Lanes), weight_of(weights, k), sum[k]);
            }
        }
        for (int k = 0; k < Tile; ++k) put(sums + k * Lanes, sum[k]);
    }

    const int64_t row_;
    const int lanes_;
    const int64_t vectors_;
    const int64_t of_a_head_;  // vectors of a head, 0 if a vector may hold several heads
    const Buffer<int32_t> places_;
};

}  // namespace gqc::GQC_ISA
