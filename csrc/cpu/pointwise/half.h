// IEEE half precision without instructions for it: exact to float32, rounded to nearest, ties to even, from it.
#pragma once

#include "common/scalar.h"

namespace gqc::GQC_ISA {

inline float float_of_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 5.192296858534828e33f);  // 2^112
    return float_of((magnitude >= 0x7c00u ? magnitude << 13 | 0x7f800000u : finite) | sign);
}

// The float32 nearest to x of those that half precision has.
inline float round_to_half(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u)) & ~0x1fffu;
    const uint32_t small = bits_of((float_of(magnitude) + 0.5f) - 0.5f);  // below 2^-14 halves are 2^-24 apart
    uint32_t rounded = magnitude < 0x38800000u ? small : normal;
    rounded = rounded > 0x477fe000u ? 0x7f800000u : rounded;  // beyond 65504
    rounded = magnitude > 0x7f800000u ? 0x7fc00000u : rounded;
    return float_of(rounded | (bits & 0x80000000u));
}

// The half that equals x, which is one.
inline uint16_t half_of(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? small : (magnitude >> 13) - (112u << 10);
    half = magnitude >= 0x7f800000u ? (magnitude >> 13 & 0x3ffu) | 0x7c00u : half;
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

}  // namespace gqc::GQC_ISA
