// The scalar types of tensors and their way to and from float32, in which kernels compute.
#pragma once

#include "cuda/device.cuh"

struct bfloat16 {
    uint16_t bits;
};

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(bfloat16 x) {
    return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
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
