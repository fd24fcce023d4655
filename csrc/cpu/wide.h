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
    Ints x;
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

}  // namespace gqc::GQC_ISA
