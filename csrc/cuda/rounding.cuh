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

    // The low byte is clamp(floor(x * inverse + r), -limit, limit); r: of 0 <= r < 1, 128 + r in bits.
    __device__ __forceinline__ uint32_t operator()(float x, uint32_t r_above_128) const {
        const float r = __fsub_rn(__uint_as_float(r_above_128), 128.0f);
        const float y = fminf(fmaxf(__fadd_rn(__fmul_rn(x, inverse), r), -limit), limit);
        return __float_as_uint(__fadd_rd(y, 12582912.0f));  // 3 * 2^22
    }
};

// Random bytes by which elements are rounded; without a seed those that round to nearest.
struct RoundingBits {
    Philox stream;
    bool stochastic;

    __device__ __forceinline__ RoundingBits(const int64_t* seed, int64_t node)
        : stream(seed ? seed[0] : 0, seed ? seed[1] : 0, node), stochastic(seed != nullptr) {}

    __device__ __forceinline__ uint4 words(int64_t block) const {
        constexpr uint32_t kHalves = 0x80808080u;
        return stochastic ? stream.words(static_cast<uint64_t>(block)) : make_uint4(kHalves, kHalves, kHalves, kHalves);
    }

    // Those of 8 elements from any one on.
    __device__ __forceinline__ uint2 eight_from(int64_t element) const {
        const int64_t block = element / kBlockBytes;
        const int skipped = static_cast<int>(element % kBlockBytes);
        // The second block comes first, since only two words of it wait in registers.
        const uint4 second = skipped > kBlockBytes - kEight ? words(block + 1) : make_uint4(0, 0, 0, 0);
        const uint4 bytes = joined(words(block), second, skipped);
        return make_uint2(bytes.x, bytes.y);
    }

    // Those of 16 elements from any one on.
    __device__ __forceinline__ uint4 sixteen_from(int64_t element) const {
        const int64_t block = element / kBlockBytes;
        const int skipped = static_cast<int>(element % kBlockBytes);
        const uint4 first = words(block);
        return skipped ? joined(first, words(block + 1), skipped) : first;
    }

    // Byte i of a word as Rounding takes it, as 128 + (byte + 1/2) / 256: the half makes the 256 fractions 1/2 in the
    // mean. Rounding to nearest adds none.
    __device__ __forceinline__ uint32_t above_128(uint32_t word, int i) const {
        return __byte_perm(word, stochastic ? 0x00430080u : 0x00430000u, 0x6504u + (static_cast<uint32_t>(i) << 4));
    }

    // Of one element.
    __device__ __forceinline__ uint32_t above_128(int64_t element) const {
        const uint4 block = words(element / kBlockBytes);
        const int at = static_cast<int>(element % kBlockBytes);
        const uint32_t low = at & 4 ? block.y : block.x, high = at & 4 ? block.w : block.z;
        return above_128(at & 8 ? high : low, at % 4);
    }

  private:
    // The 16 bytes of two blocks that follow the first `skipped`, fewer than 16.
    static __device__ __forceinline__ uint4 joined(uint4 first, uint4 second, int skipped) {
        uint32_t w[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = skipped & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = skipped & 4 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], skipped % 4 * 8);
        return make_uint4(w[0], w[1], w[2], w[3]);
    }
};

__device__ __forceinline__ uint32_t first_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// The values of eight elements, a byte each; bytes: what `random` gives for them.
__device__ __forceinline__ uint2 rounded_eight(const Rounding& round, const float (&x)[kEight],
                                               const RoundingBits& random, uint2 bytes) {
    uint32_t q[kEight];
#pragma unroll
    for (int i = 0; i < kEight; ++i) q[i] = round(x[i], random.above_128(i < 4 ? bytes.x : bytes.y, i % 4));
    return make_uint2(first_bytes(q[0], q[1], q[2], q[3]), first_bytes(q[4], q[5], q[6], q[7]));
}

// Likewise of 16 elements, of which there are two arrays.
__device__ __forceinline__ uint4 rounded_sixteen(const Rounding& round, const float (&low)[kEight],
                                                 const float (&high)[kEight], const RoundingBits& random, uint4 bytes) {
    const uint2 first = rounded_eight(round, low, random, make_uint2(bytes.x, bytes.y));
    const uint2 second = rounded_eight(round, high, random, make_uint2(bytes.z, bytes.w));
    return make_uint4(first.x, first.y, second.x, second.y);
}

// Eight values as the bytes of a tensor of int8.
__device__ __forceinline__ void store_values(int8_t* q, int64_t first, uint2 values, int count, bool vectors) {
    if (vectors && count == kEight) return global_store<uint2>(q + first, values);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        if (i < count) q[first + i] = static_cast<int8_t>(byte_of(i < 4 ? values.x : values.y, i % 4));
}
