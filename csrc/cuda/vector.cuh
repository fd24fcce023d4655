// Eight neighbouring elements at a time, which are a block of random bits, read and written in as few accesses as
// their place in memory and the end of the tensor allow.
#pragma once

#include "cuda/scalar.cuh"

constexpr int kEight = 8;

__device__ __forceinline__ bool is_aligned(const void* p, int bytes) {
    return (reinterpret_cast<uint64_t>(p) & static_cast<uint64_t>(bytes - 1)) == 0;
}

// Elements of the run of at most 8 that starts at `first` of n.
__device__ __forceinline__ int count_of_eight(int64_t first, int64_t n) {
    return n - first < kEight ? static_cast<int>(n - first) : kEight;
}

__device__ __forceinline__ void unpack_bf16(uint4 words, float (&x)[kEight]) {
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(pairs[i] << 16);
        x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ void unpack_f16(uint4 words, float (&x)[kEight]) {
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = to_float(float16{static_cast<uint16_t>(pairs[i])});
        x[2 * i + 1] = to_float(float16{static_cast<uint16_t>(pairs[i] >> 16)});
    }
}

__device__ __forceinline__ void load_vectors(const float* from, float (&x)[kEight]) {
    const float4 low = global_load<float4>(from), high = global_load<float4>(from + 4);
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ __forceinline__ void load_vectors(const bfloat16* from, float (&x)[kEight]) {
    unpack_bf16(global_load<uint4>(from), x);
}
__device__ __forceinline__ void load_vectors(const float16* from, float (&x)[kEight]) {
    unpack_f16(global_load<uint4>(from), x);
}

// x = `count` elements from `from` on, then zeros; vectors: `from` is on a 16-byte boundary.
template <typename T>
__device__ __forceinline__ void load_eight(const T* from, int count, bool vectors, float (&x)[kEight]) {
    if (vectors && count == kEight) return load_vectors(from, x);
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = i < count ? to_float(from[i]) : 0.0f;
}

// Writes 16 bytes.
__device__ __forceinline__ void store_vector(float* to, const float (&x)[4]) {
    global_store<float4>(to, make_float4(x[0], x[1], x[2], x[3]));
}
template <typename T>
__device__ __forceinline__ void store_vector(T* to, const float (&x)[kEight]) {
    global_store<uint4>(to, make_uint4(pair_from_floats<T>(x[0], x[1]), pair_from_floats<T>(x[2], x[3]),
                                       pair_from_floats<T>(x[4], x[5]), pair_from_floats<T>(x[6], x[7])));
}

__device__ __forceinline__ void store_vectors(float* to, const float (&x)[kEight]) {
    global_store<float4>(to, make_float4(x[0], x[1], x[2], x[3]));
    global_store<float4>(to + 4, make_float4(x[4], x[5], x[6], x[7]));
}
template <typename T>
__device__ __forceinline__ void store_vectors(T* to, const float (&x)[kEight]) {
    store_vector(to, x);
}

template <typename T>
__device__ __forceinline__ void store_eight(T* to, const float (&x)[kEight], int count, bool vectors) {
    if (vectors && count == kEight) return store_vectors(to, x);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        if (i < count) to[i] = from_float<T>(x[i]);
}

__device__ __forceinline__ uint8_t byte_of(uint32_t word, int i) {
    return static_cast<uint8_t>(word >> (8 * i));
}
