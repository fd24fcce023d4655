// Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): random bits that are a function
// of their place alone, so a tensor is rounded in the same way on any number of threads and on any device.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#    include <immintrin.h>
#endif

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// One stream: the key is the step's number, the counter holds the block, the graph node and the step counter.
struct Philox {
    uint32_t key[2];
    uint32_t node;
    uint32_t step;

    Philox(const int64_t* seed, int64_t node)
        : key{static_cast<uint32_t>(seed[0]), static_cast<uint32_t>(static_cast<uint64_t>(seed[0]) >> 32)},
          node(static_cast<uint32_t>(node)),
          step(static_cast<uint32_t>(seed[1])) {}
};

constexpr int kPhiloxRounds = 7;
constexpr int kBlockElements = 8;  // a block is 128 bits, an element takes 16 of them
constexpr int kBlocks = 16;        // blocks that one call computes

// Words side by side, each in the low half of a 64-bit lane; the high halves hold rubbish, which no step reads.
#if defined(__AVX512F__)
constexpr int kWords = 8;
#elif defined(__AVX2__)
constexpr int kWords = 4;
#else
constexpr int kWords = 2;
#endif
typedef uint64_t Words __attribute__((vector_size(kWords * 8)));

// 64-bit products of the words with one factor.
inline Words multiply(Words words, uint64_t factor) {
#if defined(__AVX512F__)
    return (Words)_mm512_mul_epu32((__m512i)words, _mm512_set1_epi64(static_cast<int64_t>(factor)));
#elif defined(__AVX2__)
    return (Words)_mm256_mul_epu32((__m256i)words, _mm256_set1_epi64x(static_cast<int64_t>(factor)));
#elif defined(__SSE2__)
    return (Words)_mm_mul_epu32((__m128i)words, _mm_set1_epi64x(static_cast<int64_t>(factor)));
#else
    return (words & 0xffffffffu) * factor;
#endif
}

// random[i] = bits of element i % kBlockElements of block block_of(i / kBlockElements). Element 2i and 2i+1 of a block
// take the low and the high half of output word i, which is the order of the halves in memory on a little-endian
// machine. Blocks from `blocks` on may be left out.
template <typename BlockOf>
inline void random_blocks(const Philox& stream, const BlockOf& block_of, uint16_t random[kBlocks * kBlockElements],
                          int64_t blocks = kBlocks) {
    for (int64_t group = 0; group < blocks; group += kWords) {
        Words c0, c1, c2 = Words{} + stream.node, c3 = Words{} + stream.step;
        for (int lane = 0; lane < kWords; ++lane) c0[lane] = block_of(group + lane);
        c1 = c0 >> 32;
        uint32_t key0 = stream.key[0], key1 = stream.key[1];
        for (int round = 0; round < kPhiloxRounds; ++round) {
            const Words product0 = multiply(c0, 0xD2511F53u), product1 = multiply(c2, 0xCD9E8D57u);
            c0 = (product1 >> 32) ^ c1 ^ (Words{} + key0);
            c2 = (product0 >> 32) ^ c3 ^ (Words{} + key1);
            c1 = product1;
            c3 = product0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        const Words words01 = (c0 & 0xffffffffu) | (c1 << 32), words23 = (c2 & 0xffffffffu) | (c3 << 32);
        uint64_t block_pairs[kWords][2];
        for (int lane = 0; lane < kWords; ++lane) {
            block_pairs[lane][0] = words01[lane];
            block_pairs[lane][1] = words23[lane];
        }
        std::memcpy(random + group * kBlockElements, block_pairs, sizeof block_pairs);
    }
}

// random[i] = bits of element first * kBlockElements + i.
inline void random_bits(const Philox& stream, uint64_t first, uint16_t random[kBlocks * kBlockElements]) {
    random_blocks(stream, [&](int64_t block) { return first + static_cast<uint64_t>(block); }, random);
}

}  // namespace gqc::GQC_ISA
