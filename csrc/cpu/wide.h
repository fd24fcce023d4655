// Vectors of float32 from elements of each type, and back.
#pragma once

#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

constexpr int kWide = kWidest;
using Floats = Vector<float, kWide>;
using Ints = Vector<int32_t, kWide>;

inline Floats load_wide(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// 16-bit numbers, each in the low half of a lane.
inline Ints load_halves(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
    Ints x{};
    for (int i = 0; i < kWide; ++i) x[i] = from[i];
    return x;
#endif
}

inline Floats load_wide(const bfloat16* from) {
    return (Floats)(load_halves(&from->bits) << 16);
}

inline Floats load_wide(const float16* from) {
    float values[kWide];
    load_all(from, kWide, values);
    return load_wide(values);
}

// To bfloat16 and back, as store() rounds.
inline Floats in_bfloat16(Floats x) {
    const Ints bits = (Ints)x;
    const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & static_cast<int32_t>(0xffff0000u);
    return (Floats)(x != x ? broadcast<kWide>(0x7fc00000) : rounded);
}

#if defined(__AVX512BW__) || defined(__AVX2__)
constexpr int kBfloats = 2 * kWide;
typedef uint16_t Bfloats __attribute__((vector_size(kBfloats * 2)));

// The upper halves of two vectors, one vector behind the other: numbers of bfloat16 that are floats, in that type.
inline Bfloats high_halves(Floats first, Floats second) {
#    if defined(__AVX512BW__)
    alignas(64) constexpr uint16_t kOdd[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                             33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return (Bfloats)_mm512_permutex2var_epi16((__m512i)first, _mm512_load_si512(kOdd), (__m512i)second);
#    else
    constexpr int kInOrder = 0xd8;
    const __m256i low = _mm256_srli_epi32((__m256i)first, 16), high = _mm256_srli_epi32((__m256i)second, 16);
    return (Bfloats)_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), kInOrder);
#    endif
}
#endif

}  // namespace gqc::GQC_ISA
