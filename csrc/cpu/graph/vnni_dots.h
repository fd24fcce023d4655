// Dot products, head by head, of one int8 row with others, by AVX-512's instruction for them.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

#if defined(__AVX512VNNI__)

// The instruction multiplies bytes without a sign with bytes that have one: it reads x as x + 128, and sums start at
// -128 times the sum of what stays, lane by lane. 16 dot products at a time are added up across lanes together.
class VnniDots {
  public:
    VnniDots(int64_t heads, int64_t width)
        : heads_(heads),
          width_(width),
          of_a_piece_(heads % 4 == 0 && (width == 16 || width == 32) ? 64 / width : 1),
          chunks_((width + 63) / 64),
          last_mask_(~uint64_t{0} >> (chunks_ * 64 - width)),
          pieces_(heads / of_a_piece_),
          distance_(of_a_piece_ > 1 ? kAhead : entries_ahead(heads * width)),
          fixed_(pieces_ * chunks_ * 64),
          starts_(pieces_ * 16) {}

    bool ok() const { return fixed_.ok() && starts_.ok(); }

    void fix(const int8_t* row) {
        for (int64_t piece = 0; piece < pieces_; ++piece, row += width_ * of_a_piece_) {
            int8_t* const fixed = fixed_.get() + piece * chunks_ * 64;
            __m512i sum = _mm512_setzero_si512();
            for (int64_t c = 0; c < chunks_; ++c) {
                const __m512i bytes = of_a_piece_ > 1 ? _mm512_loadu_si512(row) : chunk(row, c);
                _mm512_storeu_si512(fixed + c * 64, bytes);
                sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), bytes);
            }
            _mm512_storeu_si512(starts_.get() + piece * 16, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
    }

    template <typename Index>
    void dot(const int8_t* x, const Index* rows, int64_t begin, int64_t end, int64_t last, float scale,
             float* dots) const {
        const Entries<Index> entries{x, rows, begin, end, last, _mm512_set1_ps(scale), dots};
        if (of_a_piece_ == 4) return packed<1>(entries);
        if (of_a_piece_ == 2) return packed<2>(entries);
        if (chunks_ == 1) return one_by_one<true>(entries);
        one_by_one<false>(entries);
    }

  private:
    template <typename Index>
    struct Entries {
        const int8_t* x;
        const Index* rows;
        int64_t begin, end, last;
        __m512 scale;
        float* dots;
    };

    // Heads that share 64 bytes: four entries at a time, and four heads of them, which are Pieces times 64 bytes.
    template <int Pieces, typename E>
    void packed(const E& entries) const {
        const int64_t row = heads_ * width_;
        const __m512i by_entry = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        float* dots = entries.dots;
        for (int64_t p = entries.begin; p < entries.end; p += 4, dots += 4 * heads_) {
            const int8_t* x[4];
            for (int e = 0; e < 4; ++e) {
                x[e] = entries.x + entries.rows[p + e < entries.end ? p + e : entries.end - 1] * row;
                fetch_ahead(entries, p + e, row);
            }
            for (int64_t piece = 0; piece < pieces_; piece += Pieces) {
                __m512i sums[Pieces];
                for (int i = 0; i < Pieces; ++i) {
                    const __m512i fixed = _mm512_loadu_si512(fixed_.get() + (piece + i) * 64);
                    const __m512i start = _mm512_loadu_si512(starts_.get() + (piece + i) * 16);
                    __m512i of[4];
                    for (int e = 0; e < 4; ++e)
                        of[e] = products(start, _mm512_loadu_si512(x[e] + (piece + i) * 64), fixed);
                    sums[i] = lanes_of_four(of[0], of[1], of[2], of[3]);
                }
                const __m512i by_head = Pieces == 2 ? pairs_of_lanes(sums[0], sums[Pieces - 1]) : sums[0];
                const __m512i exact = _mm512_permutexvar_epi32(by_entry, by_head);
                const __m512 result = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), entries.scale);
                if (pieces_ == Pieces) {
                    _mm512_storeu_ps(dots, result);
                } else {
                    float* const to = dots + piece / Pieces * 4;
                    _mm_storeu_ps(to, _mm512_castps512_ps128(result));
                    _mm_storeu_ps(to + heads_, _mm512_extractf32x4_ps(result, 1));
                    _mm_storeu_ps(to + 2 * heads_, _mm512_extractf32x4_ps(result, 2));
                    _mm_storeu_ps(to + 3 * heads_, _mm512_extractf32x4_ps(result, 3));
                }
            }
        }
    }

    // Any heads and width, 16 heads of as many entries as they belong to at a time.
    template <bool OneChunk, typename E>
    void one_by_one(const E& entries) const {
        const int64_t row = heads_ * width_, values = (entries.end - entries.begin) * heads_;
        int64_t p = entries.begin, h = 0;
        const int8_t* x = entries.x + entries.rows[p] * row;
        fetch_ahead(entries, p, row);
        const auto next = [&] {
            const __m512i sum = product<OneChunk>(x, h);
            if (++h == heads_) {
                h = 0;
                if (p + 1 < entries.end) ++p;
                x = entries.x + entries.rows[p] * row;
                fetch_ahead(entries, p, row);
            }
            return sum;
        };
        const auto four = [&] {
            const __m512i a = next(), b = next(), c = next(), d = next();
            return lanes_of_four(a, b, c, d);
        };
        for (int64_t n = 0; n < values; n += 16) {
            const __m512i a = four(), b = four(), c = four(), d = four();
            const __m512i exact = pairs_of_lanes(pairs_of_lanes(a, b), pairs_of_lanes(c, d));
            _mm512_storeu_ps(entries.dots + n, _mm512_mul_ps(_mm512_cvtepi32_ps(exact), entries.scale));
        }
    }

    template <typename E>
    void fetch_ahead(const E& entries, int64_t p, int64_t row) const {
        const int64_t ahead = p + distance_ < entries.last ? p + distance_ : entries.last;
        const int8_t* const next = entries.x + entries.rows[ahead] * row;
        for (int64_t i = 0; i < row; i += 64) __builtin_prefetch(next + i);
        if (row % 64) __builtin_prefetch(next + row - 1);
    }

    // Bytes c * 64 .. of a head, zeros behind its end.
    __m512i chunk(const int8_t* head, int64_t c) const {
        if (c + 1 < chunks_) return _mm512_loadu_si512(head + c * 64);
        return _mm512_maskz_loadu_epi8(last_mask_, head + c * 64);
    }

    static __m512i products(__m512i sum, __m512i x, __m512i fixed) {
        return _mm512_dpbusd_epi32(sum, _mm512_xor_si512(x, _mm512_set1_epi8(-128)), fixed);
    }

    // The products of head h, added up to 16 lanes.
    template <bool OneChunk>
    __m512i product(const int8_t* x, int64_t h) const {
        const __m512i start = _mm512_loadu_si512(starts_.get() + h * 16);
        if (OneChunk) {
            const __m512i bytes = _mm512_maskz_loadu_epi8(last_mask_, x + h * width_);
            return products(start, bytes, _mm512_loadu_si512(fixed_.get() + h * 64));
        }
        const int8_t* const fixed = fixed_.get() + h * chunks_ * 64;
        __m512i sum = start;
        for (int64_t c = 0; c < chunks_; ++c)
            sum = products(sum, chunk(x + h * width_, c), _mm512_loadu_si512(fixed + c * 64));
        return sum;
    }

    // In each 128 bits the sums of the four lanes of a, b, c and d.
    static __m512i lanes_of_four(__m512i a, __m512i b, __m512i c, __m512i d) {
        const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
        const __m512 x = _mm512_castsi512_ps(ab), y = _mm512_castsi512_ps(cd);
        return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                                _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
    }

    // The sums of 128 bits 0 and 1, then 2 and 3 of a, then of b.
    static __m512i pairs_of_lanes(__m512i a, __m512i b) {
        return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    }

    const int64_t heads_, width_;
    const int64_t of_a_piece_;  // heads that are read together
    const int64_t chunks_;      // of 64 bytes, of a piece
    const uint64_t last_mask_;
    const int64_t pieces_;
    const int64_t distance_;  // entries whose rows are fetched before they are read
    const Buffer<int8_t> fixed_;
    const Buffer<int32_t> starts_;
};

#endif

// Floats that the dot products of `entries` entries take, with what is written behind the last.
inline int64_t dots_of(int64_t entries, int64_t heads) {
    return (entries + 4) * heads + 2 * kWidest;
}

}  // namespace gqc::GQC_ISA
