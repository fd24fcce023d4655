// From floats to int8 values, the same as csrc/cpu/kernels/quantize.cpp gives. Conversions between integers and floats
// run at an eighth of the speed of sums, so they are done by sums with numbers whose last bit is worth what is needed.
#pragma once

#include "cuda/philox.cuh"
#include "cuda/vector.cuh"

// The factor and the scale of a tensor whose largest magnitude is `absmax`; limit: the largest value.
struct Rounding {
    float inverse;
    float limit;
    float scale;

    __device__ __forceinline__ Rounding(float absmax, float limit)
        : inverse(limit / absmax), limit(limit), scale(absmax / limit) {
        const bool finite = is_finite(absmax);
        if (finite && is_finite(inverse)) return;
        scale = finite ? 0.0f : __uint_as_float(0x7fc00000u);
        this->limit = inverse = 0;  // every value is 0, whatever is rounded
    }

    // The low byte is clamp(floor(x * inverse + r), -limit, limit); r: u16 / 65536 as the 16 low bits of 128 + r.
    __device__ __forceinline__ uint32_t operator()(float x, uint32_t r_above_128) const {
        const float r = __fsub_rn(__uint_as_float(r_above_128), 128.0f);
        const float y = fminf(fmaxf(__fadd_rn(__fmul_rn(x, inverse), r), -limit), limit);
        return __float_as_uint(__fadd_rd(y, 12582912.0f));  // 3 * 2^22
    }
};

constexpr uint32_t kHighBytesOf128 = 0x43000000u;

__device__ __forceinline__ uint32_t first_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// The values of a block of elements, a byte each; words: its random bits.
__device__ __forceinline__ uint2 rounded_eight(const Rounding& round, const float (&x)[kEight], uint4 words) {
    const uint32_t random[4] = {words.x, words.y, words.z, words.w};
    uint32_t q[kEight];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        q[2 * i] = round(x[2 * i], __byte_perm(random[i], kHighBytesOf128, 0x7610));
        q[2 * i + 1] = round(x[2 * i + 1], __byte_perm(random[i], kHighBytesOf128, 0x7632));
    }
    return make_uint2(first_bytes(q[0], q[1], q[2], q[3]), first_bytes(q[4], q[5], q[6], q[7]));
}

// Random bits by which blocks of elements are rounded; without a seed those that round to nearest.
struct RoundingBits {
    Philox stream;
    bool stochastic;

    __device__ __forceinline__ RoundingBits(const int64_t* seed, int64_t node)
        : stream(seed ? seed[0] : 0, seed ? seed[1] : 0, node), stochastic(seed != nullptr) {}

    __device__ __forceinline__ uint4 words(int64_t block) const {
        constexpr uint32_t kHalves = 0x80008000u;
        return stochastic ? stream.words(static_cast<uint64_t>(block)) : make_uint4(kHalves, kHalves, kHalves, kHalves);
    }

    // Those of 8 elements from one on that need not begin a block.
    __device__ __forceinline__ uint4 words_from(int64_t element) const {
        const uint4 first = words(element / kBlockElements);
        if (element % kBlockElements == 0) return first;
        return joined(first, words(element / kBlockElements + 1), static_cast<int>(element % kBlockElements));
    }

    // Of one element, as Rounding takes them.
    __device__ __forceinline__ uint32_t above_128(int64_t element) const {
        const uint4 of_block = words(element / kBlockElements);
        const int at = static_cast<int>(element % kBlockElements);
        const uint32_t low = at & 2 ? of_block.y : of_block.x, high = at & 2 ? of_block.w : of_block.z;
        return __byte_perm(at & 4 ? high : low, kHighBytesOf128, at & 1 ? 0x7632 : 0x7610);
    }

    // The 8 halves of two blocks that follow the first `skipped`, fewer than 8.
    static __device__ __forceinline__ uint4 joined(uint4 first, uint4 second, int skipped) {
        uint32_t w[kBlockElements] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = skipped & 4 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = skipped & 2 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], skipped % 2 * 16);
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
};

// Eight values as the bytes of a tensor of int8.
__device__ __forceinline__ void store_values(int8_t* q, int64_t first, uint2 values, int count, bool vectors) {
    if (vectors && count == kEight) return global_store<uint2>(q + first, values);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        if (i < count) q[first + i] = static_cast<int8_t>(byte_of(i < 4 ? values.x : values.y, i % 4));
}
