// Neighbouring elements of a row of features, read in one access and kept in registers as they stand in memory.
#pragma once

#include "cuda/device.cuh"

// A byte of packed 4-bit values: element 2i of a row is its low and 2i + 1 its high half.
struct Int4 {
    uint8_t pair;
};

template <typename T>
constexpr bool kIsInteger = false;
template <>
constexpr bool kIsInteger<int8_t> = true;
template <>
constexpr bool kIsInteger<Int4> = true;

// Byte i of a word as a signed number.
__device__ __forceinline__ int32_t signed_byte(uint32_t word, int i) {
    return static_cast<int32_t>(word << (24 - 8 * i)) >> 24;
}

// Elements at .. at + V - 1 of a row. floats() gives their values, dot() the exact sum of products with another pack.
template <typename T, int V>
struct Pack;

template <>
struct Pack<float, 4> {
    float4 raw;

    __device__ __forceinline__ void load(const float* row, int at) { raw = global_load<float4>(row + at); }
    __device__ __forceinline__ void floats(float (&x)[4]) const {
        x[0] = raw.x;
        x[1] = raw.y;
        x[2] = raw.z;
        x[3] = raw.w;
    }
};
template <>
struct Pack<float, 1> {
    float raw;

    __device__ __forceinline__ void load(const float* row, int at) { raw = row[at]; }
    __device__ __forceinline__ void floats(float (&x)[1]) const { x[0] = raw; }
};

template <>
struct Pack<int8_t, 16> {
    int4 raw;

    __device__ __forceinline__ void load(const int8_t* row, int at) { raw = global_load<int4>(row + at); }
    __device__ __forceinline__ int32_t dot(const Pack& other) const {
        int32_t sum = __dp4a(raw.x, other.raw.x, 0);
        sum = __dp4a(raw.y, other.raw.y, sum);
        sum = __dp4a(raw.z, other.raw.z, sum);
        return __dp4a(raw.w, other.raw.w, sum);
    }
};
template <>
struct Pack<int8_t, 4> {
    int32_t raw;

    __device__ __forceinline__ void load(const int8_t* row, int at) { raw = global_load<int32_t>(row + at); }
    __device__ __forceinline__ void floats(float (&x)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = static_cast<float>(signed_byte(static_cast<uint32_t>(raw), i));
    }
    __device__ __forceinline__ int32_t dot(const Pack& other) const { return __dp4a(raw, other.raw, 0); }
};
template <>
struct Pack<int8_t, 1> {
    int32_t raw;

    __device__ __forceinline__ void load(const int8_t* row, int at) { raw = row[at]; }
    __device__ __forceinline__ void floats(float (&x)[1]) const { x[0] = static_cast<float>(raw); }
    __device__ __forceinline__ int32_t dot(const Pack& other) const { return raw * other.raw; }
};

// Four bits at the top of each byte are 16 times their value, so bytes of halves multiply to 256 times the products.
constexpr uint32_t kHighHalves = 0xf0f0f0f0u;

template <>
struct Pack<Int4, 32> {
    int4 raw;

    __device__ __forceinline__ void load(const Int4* row, int at) { raw = global_load<int4>(row + at / 2); }
    __device__ __forceinline__ int32_t dot(const Pack& other) const {
        int32_t sum = add(raw.x, other.raw.x, 0);
        sum = add(raw.y, other.raw.y, sum);
        sum = add(raw.z, other.raw.z, sum);
        return add(raw.w, other.raw.w, sum) >> 8;
    }

  private:
    __device__ __forceinline__ static int32_t add(int32_t a, int32_t b, int32_t sum) {
        const uint32_t p = static_cast<uint32_t>(a), q = static_cast<uint32_t>(b);
        sum = __dp4a(static_cast<int32_t>(p & kHighHalves), static_cast<int32_t>(q & kHighHalves), sum);
        return __dp4a(static_cast<int32_t>(p << 4 & kHighHalves), static_cast<int32_t>(q << 4 & kHighHalves), sum);
    }
};
template <>
struct Pack<Int4, 4> {
    uint32_t raw;

    __device__ __forceinline__ void load(const Int4* row, int at) { raw = global_load<uint16_t>(row + at / 2); }
    __device__ __forceinline__ void floats(float (&x)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = static_cast<float>(static_cast<int32_t>(raw << (28 - 4 * i)) >> 28);
    }
    __device__ __forceinline__ int32_t dot(const Pack& other) const {
        return __dp4a(spread(raw), spread(other.raw), 0) >> 8;
    }

  private:
    // The four values at the top of four bytes, in an order of its own.
    __device__ __forceinline__ static int32_t spread(uint32_t x) {
        return static_cast<int32_t>((x << 4 & 0xf0f0u) | (x & 0xf0f0u) << 16);
    }
};
template <>
struct Pack<Int4, 1> {
    int32_t raw;

    __device__ __forceinline__ void load(const Int4* row, int at) {
        raw = static_cast<int32_t>(static_cast<uint32_t>(row[at / 2].pair) << (at % 2 ? 24 : 28)) >> 28;
    }
    __device__ __forceinline__ void floats(float (&x)[1]) const { x[0] = static_cast<float>(raw); }
    __device__ __forceinline__ int32_t dot(const Pack& other) const { return raw * other.raw; }
};
