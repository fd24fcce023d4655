// The scalar types of tensors and their way to and from float32, in which kernels compute.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#    include <immintrin.h>
#endif

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
struct float16 {
    uint16_t bits;
};

// Values of an argument `dtype`.
constexpr int64_t kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2;

inline float load(float x) {
    return x;
}
inline float load(bfloat16 x) {
    return float_of(static_cast<uint32_t>(x.bits) << 16);
}

// Without branches, so that loops are vectorized. The exponent's bias grows by 112. A subnormal gets the exponent of
// 2^-14 and loses its leading one by a subtraction; Inf and NaN need all bits of the exponent.
inline float load(float16 x) {
    const uint32_t bits = x.bits, shifted = (bits & 0x7fffu) << 13, exponent = shifted & 0x0f800000u;
    const uint32_t is_subnormal = 0u - (exponent == 0), is_special = 0u - (exponent == 0x0f800000u);
    const uint32_t biased = shifted + 0x38000000u + (is_special & 0x38000000u) + (is_subnormal & 0x00800000u);
    const float value = float_of(biased) - float_of(is_subnormal & 0x38800000u);
    return float_of(bits_of(value) | (bits & 0x8000u) << 16);
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

// Likewise; from 65520 on it is Inf. A sum with 0.5, whose last bit is worth the least subnormal, rounds subnormals.
inline void store(float16* out, float x) {
    const uint32_t bits = bits_of(x), absolute = bits & 0x7fffffffu;
    const uint32_t is_subnormal = 0u - (absolute < 0x38800000u), is_large = 0u - (absolute >= 0x47800000u);
    const uint32_t is_nan = 0u - (absolute > 0x7f800000u);
    const uint32_t normal = (absolute - 0x38000000u + 0xfffu + (absolute >> 13 & 1u)) >> 13;
    const uint32_t subnormal = bits_of(float_of(absolute) + 0.5f) - 0x3f000000u;
    const uint32_t large = 0x7c00u | (is_nan & (0x200u | (absolute >> 13 & 0x3ffu)));
    const uint32_t finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    out->bits = static_cast<uint16_t>((large & is_large) | (finite & ~is_large) | (bits >> 16 & 0x8000u));
}

// Many at a time, where an instruction converts them.
template <typename T>
inline void load_all(const T* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = load(from[i]);
}
template <typename T>
inline void store_all(const float* from, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) store(&to[i], from[i]);
}
inline void store_all(const float*, int64_t, float*) {}  // see floats_for()

#if defined(__F16C__)
#    if defined(__AVX512F__)
constexpr int64_t kHalves = 16;

inline void load_halves(const float16* from, float* to) {
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline void store_halves(const float* from, float16* to) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(_mm512_loadu_ps(from), kNearest));
}
#    else
constexpr int64_t kHalves = 8;

inline void load_halves(const float16* from, float* to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
inline void store_halves(const float* from, float16* to) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(_mm256_loadu_ps(from), kNearest));
}
#    endif

inline void load_all(const float16* from, int64_t count, float* to) {
    const int64_t whole = count / kHalves * kHalves;
    for (int64_t i = 0; i < whole; i += kHalves) load_halves(from + i, to + i);
    for (int64_t i = whole; i < count; ++i) to[i] = load(from[i]);
}
inline void store_all(const float* from, int64_t count, float16* to) {
    const int64_t whole = count / kHalves * kHalves;
    for (int64_t i = 0; i < whole; i += kHalves) store_halves(from + i, to + i);
    for (int64_t i = whole; i < count; ++i) store(&to[i], from[i]);
}
#endif

// Elements as floats: converted into `scratch`, unless they are floats.
inline const float* floats(const float* x, int64_t, float*) {
    return x;
}
template <typename T>
inline const float* floats(const T* x, int64_t count, float* scratch) {
    load_all(x, count, scratch);
    return scratch;
}

// Where floats are computed that store_all() then writes to `out`: there already, or in `scratch`.
inline float* floats_for(float* out, float*) {
    return out;
}
template <typename T>
inline float* floats_for(T*, float* scratch) {
    return scratch;
}

// Calls f with the pointer to elements of a dtype.
template <typename F>
inline void typed(const void* x, int64_t dtype, F f) {
    if (dtype == kFloat16)
        f(static_cast<const float16*>(x));
    else if (dtype == kBfloat16)
        f(static_cast<const bfloat16*>(x));
    else
        f(static_cast<const float*>(x));
}
template <typename F>
inline void typed(void* x, int64_t dtype, F f) {
    if (dtype == kFloat16)
        f(static_cast<float16*>(x));
    else if (dtype == kBfloat16)
        f(static_cast<bfloat16*>(x));
    else
        f(static_cast<float*>(x));
}

inline int64_t bytes_of_dtype(int64_t dtype) {
    return dtype == kFloat32 ? 4 : 2;
}

// Magnitudes compare as integers, and so that Inf and NaN win over every finite number: max over magnitude(x) is the
// largest |x|, or Inf or NaN where a tensor holds one.
inline uint32_t magnitude(float x) {
    return bits_of(x) & 0x7fffffffu;
}
// The bits of |x|, which order the elements of a type.
inline uint32_t magnitude_bits(float x) {
    return magnitude(x);
}
inline uint16_t magnitude_bits(bfloat16 x) {
    return x.bits & 0x7fffu;
}
inline uint16_t magnitude_bits(float16 x) {
    return x.bits & 0x7fffu;
}
inline bool is_finite(float x) {
    return magnitude(x) < 0x7f800000u;
}

}  // namespace gqc::GQC_ISA
