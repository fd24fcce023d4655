// The scalar types of tensors and their way to and from float32, in which kernels compute.
#pragma once

#include "cuda/device.cuh"

struct bfloat16 {
    uint16_t bits;
};
struct float16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(bfloat16 x) {
    return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(float16 x) {
#ifdef GQC_EMULATED
    return emu::float_of_half(x.bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
#endif
}

// To nearest, ties to even, as torch does; a NaN stays a NaN.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
    const uint32_t bits = __float_as_uint(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}
template <>
__device__ __forceinline__ float16 from_float<float16>(float x) {
#ifdef GQC_EMULATED
    return {emu::half_of_float(x)};
#else
    float16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
    return half;
#endif
}

// Two neighbours, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pair_from_floats(float first, float second) {
    return from_float<T>(first).bits | static_cast<uint32_t>(from_float<T>(second).bits) << 16;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // in one instruction
template <>
__device__ __forceinline__ uint32_t pair_from_floats<bfloat16>(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
template <>
__device__ __forceinline__ uint32_t pair_from_floats<float16>(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
#endif

// Types that a kernel is told at run time, as launchers number them.
struct Dtype {
    static constexpr int kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2;
};

__device__ __forceinline__ float rounded(int64_t dtype, float x) {
    if (dtype == Dtype::kFloat32) return x;
    return dtype == Dtype::kBfloat16 ? to_float(from_float<bfloat16>(x)) : to_float(from_float<float16>(x));
}

// Magnitudes compare as integers, and so that Inf and NaN win over every finite number.
__device__ __forceinline__ uint32_t magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}
__device__ __forceinline__ bool is_finite(float x) {
    return magnitude(x) < 0x7f800000u;
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

// Defines a family of kernels, one a type of elements: KERNEL(name of the type in its symbol, type).
#define GQC_OF_EACH_TYPE(KERNEL) \
    KERNEL(f32, float)           \
    KERNEL(bf16, bfloat16)       \
    KERNEL(f16, float16)
