// Philox4x32-7, the same stream as csrc/common/philox.h: what an element is rounded by depends on its place alone.
#pragma once

#include "cuda/device.cuh"

constexpr int kPhiloxRounds = 7;
// A block is 128 bits: 16 each for so many elements, or a byte each for twice as many.
constexpr int kBlockElements = 8;
constexpr int kBlockBytes = 2 * kBlockElements;

struct Philox {
    uint32_t key[2];
    uint32_t node;
    uint32_t step;

    // number, step: the two numbers of a seed.
    __device__ __forceinline__ Philox(int64_t number, int64_t step, int64_t node)
        : key{static_cast<uint32_t>(number), static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32)},
          node(static_cast<uint32_t>(node)),
          step(static_cast<uint32_t>(step)) {}

    // seed: in the memory of the device.
    __device__ __forceinline__ Philox(const int64_t* seed, int64_t node) : Philox(seed[0], seed[1], node) {}

    // Elements of 16 bits or of a byte take those of word 0 first, the low ones of a word before the high ones.
    __device__ __forceinline__ uint4 words(uint64_t block) const {
        uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = node, c3 = step;
        uint32_t key0 = key[0], key1 = key[1];
#pragma unroll
        for (int round = 0; round < kPhiloxRounds; ++round) {
            const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
            const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
            c0 = high1 ^ c1 ^ key0;
            c1 = low1;
            c2 = high0 ^ c3 ^ key1;
            c3 = low0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        return make_uint4(c0, c1, c2, c3);
    }
};

// Bit i is set where element i of a block is kept, which is where its random number is at least `least`.
__device__ __forceinline__ uint32_t kept_of_eight(uint4 words, uint32_t least) {
    const uint32_t random[4] = {words.x, words.y, words.z, words.w};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        bits |= static_cast<uint32_t>((random[i] & 0xffffu) >= least) << (2 * i);
        bits |= static_cast<uint32_t>((random[i] >> 16) >= least) << (2 * i + 1);
    }
    return bits;
}
