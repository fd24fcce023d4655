// Values of few bits from the elements of a run, and elements from values.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/scalar.h"
#include "cpu/row_compression/ends.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {

constexpr int32_t kFractionBits = 16;  // of an element before it is rounded, as many as it has random bits
constexpr int64_t kRowSpare = 8;       // more values than a row leaves of its last byte
constexpr int32_t kHalf = 1 << (kFractionBits - 1);

// To nearest, ties to even.
inline Ints nearest(Floats x) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtps_epi32((__m256)x);
#elif defined(__SSE2__)
    return (Ints)_mm_cvtps_epi32((__m128)x);
#else
    Ints y;
    for (int i = 0; i < kWide; ++i) y[i] = static_cast<int32_t>(std::nearbyint(x[i]));
    return y;
#endif
}

// A byte an element: its own and its neighbour's below it are 16 bits, the two bytes of a pair of elements in one and
// in the other order. kRandomSpare bytes may be read.
constexpr int64_t kRandomSpare = 16;

inline Ints load_random(const uint8_t* bytes) {
#if defined(__AVX512F__)
    const __m512i order =
        _mm512_set_epi64(0x80800f0e80800e0f, 0x80800d0c80800c0d, 0x80800b0a80800a0b, 0x8080090880800809,
                         0x8080070680800607, 0x8080050480800405, 0x8080030280800203, 0x8080010080800001);
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return (Ints)_mm512_shuffle_epi8(pairs, order);
#elif defined(__AVX2__)
    const __m256i order =
        _mm256_set_epi64x(0x8080070680800607, 0x8080050480800405, 0x8080030280800203, 0x8080010080800001);
    const __m256i pairs = _mm256_broadcastsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    return (Ints)_mm256_shuffle_epi8(pairs, order);
#else
    const int32_t first = bytes[1] << 8 | bytes[0], second = bytes[3] << 8 | bytes[2];
    const Ints pairs{first, first, second, second}, exchanged = (pairs & 255) << 8 | pairs >> 8;
    return Ints{0, 1, 0, 1} > 0 ? pairs : exchanged;
#endif
}

// 0 <= x <= 256 as bytes, 256 as 255.
inline void put_values(Ints x, uint8_t* out) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_maskz_cvtusepi32_epi8(0xffff, (__m512i)x));
#elif defined(__AVX2__)
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
#else
    for (int i = 0; i < kWide; ++i) out[i] = static_cast<uint8_t>(x[i] < 255 ? x[i] : 255);
#endif
}
inline void put_values(Ints a, Ints b, Ints c, Ints d, uint8_t* out) {
#if defined(__AVX512F__)
    const __m512i ab = _mm512_packus_epi32((__m512i)a, (__m512i)b), cd = _mm512_packus_epi32((__m512i)c, (__m512i)d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd)));
#elif defined(__AVX2__)
    const __m256i ab = _mm256_packus_epi32((__m256i)a, (__m256i)b), cd = _mm256_packus_epi32((__m256i)c, (__m256i)d);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order));
#elif defined(__SSE2__)
    const __m128i ab = _mm_packs_epi32((__m128i)a, (__m128i)b), cd = _mm_packs_epi32((__m128i)c, (__m128i)d);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(ab, cd));
#else
    const Ints parts[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) put_values(parts[i], out + i * kWide);
#endif
}

// values[i] = (nearest((x[i] - least) * factor) + random[i]) >> kFractionBits, at most 255. An element is at most
// 2^kFractionBits * (2^bits - 1), or where that has 24 bits, one more: only 8 bits can overflow. `left`: elements that
// may be read. random: of each element, see load_random(). kWide values may be written from the last one on, and
// kRowSpare behind it are 0.
template <bool stochastic, typename T>
inline void round_run(const T* x, int64_t count, int64_t left, float least, float factor, const uint8_t* random,
                      uint8_t* values) {
    const auto rounded = [&](Floats part, int64_t at) {
        const Ints fixed = nearest((part - least) * factor);
        if constexpr (stochastic)
            return (fixed + load_random(random + at)) >> kFractionBits;
        else
            return (fixed + kHalf) >> kFractionBits;
    };
    const auto value = [&](int64_t at) { return rounded(load_wide(x + at), at); };
    int64_t at = 0;
    for (; at + 4 * kWide <= count; at += 4 * kWide)
        put_values(value(at), value(at + kWide), value(at + 2 * kWide), value(at + 3 * kWide), values + at);
    for (; at + kWide <= count; at += kWide) put_values(value(at), values + at);
    if (at < count) put_values(rounded(load_some(x + at, count - at, left - at), at), values + at);
    std::memset(values + count, 0, kRowSpare);
}

// Statistics in bfloat16 may lie beyond the largest float16.
inline float within(const float16*, float y) {
    y = y > 65504.0f ? 65504.0f : y;
    return y < -65504.0f ? -65504.0f : y;
}
template <typename T>
inline float within(const T*, float y) {
    return y;
}

#if defined(__AVX2__)
inline Floats load_values(const uint8_t* values) {
#    if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return to_float<kWide>((Ints)_mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#    else
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values));
    return to_float<kWide>((Ints)_mm256_cvtepu8_epi32(bytes));
#    endif
}
#endif

// out[i] = values[i] * step + zero; kWide values may be read and kWide elements written from the last one on.
inline void spread_run(const uint8_t* __restrict values, int64_t count, float step, float zero, float* __restrict out) {
#if defined(__AVX2__)
    for (int64_t at = 0; at < count; at += kWide) put(out + at, load_values(values + at) * step + zero);
#else
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(values[i]) * step + zero;
#endif
}

}  // namespace gqc::GQC_ISA
