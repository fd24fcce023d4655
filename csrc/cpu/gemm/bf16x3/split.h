// A float32 as the sum of two bfloat16: the nearest one, and what is left, rounded.
//
// Of a product of two such sums three terms are computed, high * high + high * low + low * high, exactly and added up
// in float32: "bf16x3", which torch knows as float32 matmul precision "high". What is left out is at most 2^-15 of the
// product: 2^-16 for low * low and 2^-17 for the rounding of each low part. Tiles take values below 2^-126 for 0.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/float24.h"

namespace gqc::GQC_ISA {

// Lane by lane, of two vectors: bfloat16 of the first in the low half of a word, of the second in the high half.
struct Halves {
    __m512i high, low;
};

// Splits floats, and sees whether all could be split: Inf and NaN cannot, nor what bfloat16 rounds to Inf.
class Splitter {
  public:
    Halves split(__m512 first, __m512 second) {
        const __m512 first_high = nearest(first), second_high = nearest(second);
        const __m512 first_low = first - first_high, second_low = second - second_high;
        constexpr int kNotFinite = 0x99;
        lost_ |= _mm512_fpclass_ps_mask(first_low + second_low, kNotFinite);
        return {joined(first_high, second_high), joined(nearest(first_low), nearest(second_low))};
    }
    bool ok() const { return lost_ == 0; }

  private:
    // Rounded to 8 bits of precision, ties away from 0.
    static __m512 nearest(__m512 x) {
        const __m512i bits = _mm512_add_epi32((__m512i)x, _mm512_set1_epi32(0x8000));
        return (__m512)_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    }
    static __m512i joined(__m512 first, __m512 second) {
        return _mm512_or_si512(_mm512_srli_epi32((__m512i)first, 16), (__m512i)second);
    }

    unsigned lost_ = 0;
};

inline __m512 load_sixteen(const float* from) {
    return _mm512_loadu_ps(from);
}

// The first `count` of 16 floats and zeros, none for a negative count.
inline __m512 load_first(const float* from, int64_t count) {
    const __mmask16 there = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
    return _mm512_maskz_loadu_ps(there, from);
}
inline __m512 load_first(const float24* from, int64_t count) {
    float24 there[16] = {};
    if (count > 0) std::memcpy(there, from, static_cast<size_t>(count < 16 ? count : 16) * sizeof *from);
    return load_sixteen(there);
}

}  // namespace gqc::GQC_ISA
