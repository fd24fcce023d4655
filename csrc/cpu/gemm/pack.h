// Operands of an integer matrix product in the order in which dot_tile reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "common/int4.h"
#include "cpu/gemm/dot.h"

namespace gqc::GQC_ISA {

inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// An int8 matrix seen as [k, j]: the contracted index and a row of left or a column of right.
struct Operand {
    const int8_t* values;
    int64_t stride;     // elements between neighbours along the index that is not contiguous
    bool k_contiguous;  // (k, j) is values[j * stride + k], else values[k * stride + j]
};

// A matrix as it lies in memory, in lines of `width` int8 or packed 4-bit values.
struct Matrix {
    const void* values;
    int64_t lines, width;
    bool packed;

    const uint8_t* packed_line(int64_t line) const {
        return static_cast<const uint8_t*>(values) + line * int4_bytes(width);
    }
    const int8_t* line(int64_t line) const { return static_cast<const int8_t*>(values) + line * width; }
};

// An operand of a product: a matrix, and whether its lines run along the contracted index.
struct Factor {
    Matrix matrix;
    bool k_contiguous;
};

// Lines of a matrix in int8: where they lie, or at most `most` of them unpacked.
class Lines {
  public:
    Lines(const Matrix& matrix, int64_t most) : matrix_(matrix), unpacked_(matrix.packed ? most * matrix.width : 0) {}

    bool ok() const { return unpacked_.ok(); }

    // `count` lines from `first` on, until the next call.
    const int8_t* read(int64_t first, int64_t count) const {
        if (!matrix_.packed) return matrix_.line(first);
        for (int64_t i = 0; i < count; ++i)
            unpack_int4<int8_t, as_int8>(matrix_.packed_line(first + i), matrix_.width, &unpacked_[i * matrix_.width]);
        return unpacked_.get();
    }

  private:
    Matrix matrix_;
    Buffer<int8_t> unpacked_;
};

// Stores of bytes may alias anything, loop bounds too: hence __restrict here and values instead of references below.
template <typename T, T (*encode)(int8_t)>
inline void encode_row(const int8_t* __restrict from, int64_t count, T* __restrict out) {
    for (int64_t i = 0; i < count; ++i) out[i] = encode(from[i]);
}

template <typename T, T (*encode)(int8_t)>
inline void encode_line(const Matrix& x, int64_t line, T* out) {
    if (x.packed)
        unpack_int4<T, encode>(x.packed_line(line), x.width, out);
    else
        encode_row<T, encode>(x.line(line), x.width, out);
}

#if defined(__AVX512VNNI__)
// out[j][i] = from[i][j] ^ flip for 4 rows of bytes.
inline void interleave_rows(const int8_t* from, int64_t stride, int64_t count, char flip, void* to) {
    const __m512i flips = _mm512_set1_epi8(flip);
    for (int64_t j = 0; j < count; j += 64) {
        const int64_t rest = count - j < 64 ? count - j : 64;
        const __mmask64 columns = ~0ull >> (64 - rest);
        __m512i rows[4], fours[4];
#    pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) rows[i] = _mm512_maskz_loadu_epi8(columns, from + i * stride + j) ^ flips;
        const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]), high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
        const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]), high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
        fours[0] = _mm512_unpacklo_epi16(low01, low23);  // part p holds columns 16 p .. 16 p + 3
        fours[1] = _mm512_unpackhi_epi16(low01, low23);
        fours[2] = _mm512_unpacklo_epi16(high01, high23);
        fours[3] = _mm512_unpackhi_epi16(high01, high23);
        const __m512i even0 = _mm512_shuffle_i32x4(fours[0], fours[1], 0x88);
        const __m512i even1 = _mm512_shuffle_i32x4(fours[2], fours[3], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(fours[0], fours[1], 0xdd);
        const __m512i odd1 = _mm512_shuffle_i32x4(fours[2], fours[3], 0xdd);
        const __m512i results[4] = {_mm512_shuffle_i32x4(even0, even1, 0x88), _mm512_shuffle_i32x4(odd0, odd1, 0x88),
                                    _mm512_shuffle_i32x4(even0, even1, 0xdd), _mm512_shuffle_i32x4(odd0, odd1, 0xdd)};
        char* out = static_cast<char*>(to) + j * 4;
#    pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            const int64_t words = rest - v * 16;
            const __mmask16 kept = words >= 16 ? 0xffff : words <= 0 ? 0 : (1u << words) - 1;
            _mm512_mask_storeu_epi32(out + v * 64, kept, results[v]);
        }
    }
}
#elif defined(__AVXVNNI__)
// As above. The last 16 columns are moved back so that they end with the rows, of which fewer are taken one by one.
inline void interleave_rows(const int8_t* from, int64_t stride, int64_t count, char flip, void* to) {
    const __m128i flips = _mm_set1_epi8(flip);
    char* const out = static_cast<char*>(to);
    if (count < 16) {
        for (int64_t j = 0; j < count; ++j)
            for (int i = 0; i < 4; ++i) out[j * 4 + i] = static_cast<char>(from[i * stride + j] ^ flip);
        return;
    }
    for (int64_t next = 0; next < count; next += 16) {
        const int64_t j = next + 16 <= count ? next : count - 16;
        __m128i rows[4];
#    pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * stride + j)) ^ flips;
        const __m128i low01 = _mm_unpacklo_epi8(rows[0], rows[1]), high01 = _mm_unpackhi_epi8(rows[0], rows[1]);
        const __m128i low23 = _mm_unpacklo_epi8(rows[2], rows[3]), high23 = _mm_unpackhi_epi8(rows[2], rows[3]);
        __m128i* const results = reinterpret_cast<__m128i*>(out + j * 4);
        _mm_storeu_si128(results, _mm_unpacklo_epi16(low01, low23));
        _mm_storeu_si128(results + 1, _mm_unpackhi_epi16(low01, low23));
        _mm_storeu_si128(results + 2, _mm_unpacklo_epi16(high01, high23));
        _mm_storeu_si128(results + 3, _mm_unpackhi_epi16(high01, high23));
    }
}
#endif

// out[j][i] = encoded (k + i, j0 + j) for j < j_count and i < kGroup, with zeros from i = k_count on.
template <typename T, T (*encode)(int8_t)>
inline void pack_group(Operand x, int64_t k, int64_t k_count, int64_t j0, int64_t j_count, T* __restrict out) {
    const int64_t stride = x.stride;
    const int8_t* __restrict from = x.values + (x.k_contiguous ? j0 * stride + k : k * stride + j0);
    const int64_t k_step = x.k_contiguous ? 1 : stride, j_step = x.k_contiguous ? stride : 1;
    if (k_count < kGroup) {
        std::memset(out, 0, static_cast<size_t>(j_count * kGroup) * sizeof(T));
        for (int64_t j = 0; j < j_count; ++j)
            for (int64_t i = 0; i < k_count; ++i) out[j * kGroup + i] = encode(from[i * k_step + j * j_step]);
    } else if (x.k_contiguous) {
        for (int64_t j = 0; j < j_count; ++j)
            for (int i = 0; i < kGroup; ++i) out[j * kGroup + i] = encode(from[j * stride + i]);
    } else {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
        interleave_rows(from, stride, j_count, static_cast<char>(encode(0)), out);
#else
        for (int64_t j = 0; j < j_count; ++j)
            for (int i = 0; i < kGroup; ++i) out[j * kGroup + i] = encode(from[i * stride + j]);
#endif
    }
}

}  // namespace gqc::GQC_ISA
