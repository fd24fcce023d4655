// The scalar types of tensors and their way to and from float32, in which kernels compute.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

struct bfloat16 {
    uint16_t bits;
};

inline float load(float x) {
    return x;
}
inline float load(bfloat16 x) {
    return float_of(static_cast<uint32_t>(x.bits) << 16);
}

inline void store(float* out, float x) {
    *out = x;
}

// To nearest, ties to even, as torch does; a NaN stays a NaN.
inline void store(bfloat16* out, float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// Calls f with the pointer as const bfloat16* or const float* (bfloat16* or float*).
template <typename F>
inline void typed(const void* x, int64_t is_bf16, F f) {
    is_bf16 ? f(static_cast<const bfloat16*>(x)) : f(static_cast<const float*>(x));
}

template <typename F>
inline void typed(void* x, int64_t is_bf16, F f) {
    is_bf16 ? f(static_cast<bfloat16*>(x)) : f(static_cast<float*>(x));
}

// Magnitudes compare as integers, and so that Inf and NaN win over every finite number: max over magnitude(x) is the
// largest |x|, or Inf or NaN where a tensor holds one.
inline uint32_t magnitude(float x) {
    return bits_of(x) & 0x7fffffffu;
}
inline bool is_finite(float x) {
    return magnitude(x) < 0x7f800000u;
}

}  // namespace gqc::GQC_ISA
