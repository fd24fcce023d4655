// Rows of float24: the upper three bytes of a float32, a sign, 8 bits of exponent and 15 of fraction (the 24-bit type
// of OpenEXR's PXR24, ImfPxr24Compressor), rounded to nearest. An element is at most 2^-16 of itself off.
//
// Each row starts at a cache line, so that reading one at random touches as few lines as its bytes fill.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/scalar.h"
#include "cpu/wide.h"
#include "cpu/write.h"

namespace gqc::GQC_ISA {

struct float24 {
    uint8_t bytes[3];  // the lowest first
};

// Mirrored by runtime/float24.py.
inline int64_t bytes_of_row24(int64_t width) {
    constexpr int64_t kLine = 64;
    return (width * static_cast<int64_t>(sizeof(float24)) + kLine - 1) / kLine * kLine;
}

inline const float24* row24(const void* rows, int64_t row, int64_t width) {
    return reinterpret_cast<const float24*>(static_cast<const uint8_t*>(rows) + row * bytes_of_row24(width));
}

inline float load(float24 x) {
    return float_of(static_cast<uint32_t>(x.bytes[0]) << 8 | static_cast<uint32_t>(x.bytes[1]) << 16 |
                    static_cast<uint32_t>(x.bytes[2]) << 24);
}

// To nearest, ties away from zero; a NaN stays a NaN.
inline void store(float24* out, float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t kept = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x00400000u : bits + 0x80u;
    for (int i = 0; i < 3; ++i) out->bytes[i] = static_cast<uint8_t>(kept >> (8 * i + 8));
}

#if defined(__AVX512F__)
inline __m512 load_sixteen(const float24* p) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p->bytes + 32));
    const __m512i packed = _mm512_inserti32x4(_mm512_zextsi256_si512(first), last, 2);
    const __m512i apart = _mm512_setr_epi32(0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 9, 10, 11, 0);
    const __m128i upper = _mm_setr_epi8(-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11);
    return (__m512)_mm512_shuffle_epi8(_mm512_permutexvar_epi32(apart, packed), _mm512_broadcast_i32x4(upper));
}
#endif
#if defined(__AVX2__)
// The second load overlaps the first one, so as not to read past the end.
inline __m256 load_eight(const float24* p) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p->bytes + 8));
    const __m256i upper = _mm256_setr_epi8(-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, 4, 5, 6, -1, 7, 8,
                                           9, -1, 10, 11, 12, -1, 13, 14, 15);
    return (__m256)_mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(first), last, 1), upper);
}
#endif

// Lanes elements from p on.
template <int Lanes>
inline Vector<float, Lanes> load_lanes(const float24* p) {
#if defined(__AVX512F__)
    if constexpr (Lanes == 16) return (Vector<float, Lanes>)load_sixteen(p);
#endif
#if defined(__AVX2__)
    if constexpr (Lanes == 8) return (Vector<float, Lanes>)load_eight(p);
#endif
    if constexpr (Lanes == 1) {
        return load(*p);
    } else {
        Vector<float, Lanes> x;
        for (int i = 0; i < Lanes; ++i) x[i] = load(p[i]);
        return x;
    }
}

// The first `count` elements of a row as floats.
inline void load_row(const float24* row, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + kWide <= count; i += kWide) put(to + i, load_lanes<kWide>(row + i));
    for (; i < count; ++i) to[i] = load(row[i]);
}

#if defined(__AVX2__)
// kWide elements, those of each 128 bits in their first 12 bytes.
inline Ints in_twelves(Floats x) {
    const Ints bits = (Ints)x, kept = x != x ? bits | 0x00400000 : bits + 0x80;
    const __m128i upper = _mm_setr_epi8(1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, -1, -1, -1, -1);
#    if defined(__AVX512F__)
    return (Ints)_mm512_shuffle_epi8((__m512i)kept, _mm512_broadcast_i32x4(upper));
#    else
    return (Ints)_mm256_shuffle_epi8((__m256i)kept, _mm256_broadcastsi128_si256(upper));
#    endif
}

// kWide elements, and up to 16 bytes behind them, which are overwritten.
inline void store_wide(Floats x, float24* to) {
    const Ints packed = in_twelves(x);
#    if defined(__AVX512F__)
    const __m512i together = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(together, (__m512i)packed));
#    else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128((__m256i)packed));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to->bytes + 12), _mm256_extracti128_si256((__m256i)packed, 1));
#    endif
}
#endif

// Elements that fill whole lines: rows of a multiple of them lie one behind the other.
constexpr int64_t kWholeLines24 = 64;

#if defined(__AVX512F__)
// kWholeLines24 elements to the start of a line. streamed: past the caches.
inline void store_lines(Floats a, Floats b, Floats c, Floats d, uint8_t* to, bool streamed) {
    // Twelve words of each vector, in order; those of the second operand count from 16 on.
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20);
    const __m512i second = _mm512_setr_epi32(5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 20, 21, 22, 24, 25);
    const __m512i third = _mm512_setr_epi32(10, 12, 13, 14, 16, 17, 18, 20, 21, 22, 24, 25, 26, 28, 29, 30);
    const __m512i in_b = (__m512i)in_twelves(b), in_c = (__m512i)in_twelves(c);
    put_vector(_mm512_permutex2var_epi32((__m512i)in_twelves(a), first, in_b), to, streamed);
    put_vector(_mm512_permutex2var_epi32(in_b, second, in_c), to + 64, streamed);
    put_vector(_mm512_permutex2var_epi32(in_c, third, (__m512i)in_twelves(d)), to + 128, streamed);
}
#endif

// A row, with zeros behind it up to the next line; the 16 bytes after them may be overwritten.
inline void store_row(const float* from, int64_t width, float24* to) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + kWide <= width; i += kWide) store_wide(load_wide(from + i), to + i);
    if (i < width && width >= kWide) {
        store_wide(load_wide(from + width - kWide), to + width - kWide);
        i = width;
    }
#endif
    for (; i < width; ++i) store(to + i, from[i]);
    std::memset(to + width, 0, static_cast<size_t>(bytes_of_row24(width) - width * static_cast<int64_t>(sizeof *to)));
}

// Rows row .. row + count of `to`. scratch: for as many bytes as the floats have, but for one row at least, and 64
// more. streamed: past the caches.
inline void write_rows24(const float* from, int64_t row, int64_t count, int64_t width, void* to, void* scratch,
                         bool streamed) {
    const int64_t bytes = bytes_of_row24(width), fit = 4 * count * width / bytes, most = fit < 1 ? 1 : fit;
    uint8_t *const made = static_cast<uint8_t*>(scratch), *out = static_cast<uint8_t*>(to) + row * bytes;
    for (int64_t at = 0; at < count; at += most) {
        const int64_t rows = count - at < most ? count - at : most;
        for (int64_t r = 0; r < rows; ++r)
            store_row(from + (at + r) * width, width, reinterpret_cast<float24*>(made + r * bytes));
        if (streamed)
            stream(made, rows * bytes, out);
        else
            std::memcpy(out, made, static_cast<size_t>(rows * bytes));
        out += rows * bytes;
    }
}

}  // namespace gqc::GQC_ISA
