// Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): random bits that are a function
// of their place alone, so a tensor is rounded in the same way on any number of threads and on any device.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/intrinsics.h"
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
constexpr uint64_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;
// A block is 128 bits: 16 each for so many elements, or a byte each for twice as many.
constexpr int kBlockElements = 8;
constexpr int kBlockBytes = 2 * kBlockElements;
constexpr int kBlocks = 16;  // blocks that one call computes

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

// The high halves in the place of the low ones. A shuffle runs beside multiplications, a shift would in their place.
inline Words high(Words words) {
#if defined(__AVX512F__)
    return (Words)_mm512_shuffle_epi32((__m512i)words, static_cast<_MM_PERM_ENUM>(0xf5));
#elif defined(__AVX2__)
    return (Words)_mm256_shuffle_epi32((__m256i)words, 0xf5);
#else
    return words >> 32;
#endif
}

inline Words exclusive_or(Words a, Words b, Words c) {
#if defined(__AVX512F__)
    return (Words)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
    return a ^ b ^ c;
#endif
}

// The low halves of two words side by side, the second one's in the high half.
inline Words low_halves(Words first, Words second) {
#if defined(__AVX512F__)
    return (Words)_mm512_mask_shuffle_epi32((__m512i)first, 0xaaaa, (__m512i)second, static_cast<_MM_PERM_ENUM>(0xa0));
#elif defined(__AVX2__)
    return (Words)_mm256_blend_epi32((__m256i)first, _mm256_shuffle_epi32((__m256i)second, 0xa0), 0xaa);
#else
    return (first & 0xffffffffu) | (second << 32);
#endif
}

// The block whose counter is in a lane, such that unpacking puts blocks in order.
constexpr int block_in(int lane) {
    return lane / 2 + lane % 2 * (kWords / 2);
}

// Writes blocks whose first and second halves are given, in the lanes of block_in().
inline void put_blocks(Words first, Words second, uint16_t* out) {
#if defined(__AVX512F__)
    _mm512_storeu_si512(out, _mm512_unpacklo_epi64((__m512i)first, (__m512i)second));
    _mm512_storeu_si512(out + 32, _mm512_unpackhi_epi64((__m512i)first, (__m512i)second));
#elif defined(__AVX2__)
    __m256i* const to = reinterpret_cast<__m256i*>(out);
    _mm256_storeu_si256(to, _mm256_unpacklo_epi64((__m256i)first, (__m256i)second));
    _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi64((__m256i)first, (__m256i)second));
#else
    const uint64_t pairs[4] = {first[0], second[0], first[1], second[1]};
    std::memcpy(out, pairs, sizeof pairs);
#endif
}

// Output words 0 and 1 of kWords blocks, then 2 and 3.
struct RandomWords {
    Words words01, words23;
};

// Computes the blocks of a stream whose numbers are in the lanes.
class Blocks {
  public:
    explicit Blocks(const Philox& stream) : node_(Words{} + stream.node), step_(Words{} + stream.step) {
        for (int round = 0; round < kPhiloxRounds; ++round) {
            keys_[round][0] = Words{} + (stream.key[0] + static_cast<uint32_t>(round) * 0x9E3779B9u);
            keys_[round][1] = Words{} + (stream.key[1] + static_cast<uint32_t>(round) * 0xBB67AE85u);
        }
    }

    RandomWords operator()(Words blocks) const { return rounds<0>(blocks, blocks >> 32, node_, step_); }

  protected:
    // The rounds from First on; what is in the low halves counts.
    template <int First>
    RandomWords rounds(Words c0, Words c1, Words c2, Words c3) const {
        for (int round = First; round < kPhiloxRounds; ++round) {
            const Words product0 = multiply(c0, kFactor0), product1 = multiply(c2, kFactor1);
            c0 = exclusive_or(high(product1), c1, keys_[round][0]);
            c2 = exclusive_or(high(product0), c3, keys_[round][1]);
            c1 = product1;
            c3 = product0;
        }
        return {low_halves(c0, c1), low_halves(c2, c3)};
    }

    const Words node_, step_;
    Words keys_[kPhiloxRounds][2];
};

// Likewise for blocks whose numbers have the same high half, which the first two rounds do not mix with the rest: half
// of what they compute is known before.
class NearBlocks : Blocks {
  public:
    NearBlocks(const Philox& stream, uint64_t high_half) : Blocks(stream) {
        const Words product1 = multiply(node_, kFactor1);
        const Words product0 = multiply(exclusive_or(high(product1), Words{} + high_half, keys_[0][0]), kFactor0);
        step_and_key_ = step_ ^ keys_[0][1];
        product_and_key_ = product1 ^ keys_[1][0];
        high_and_key_ = high(product0) ^ keys_[1][1];
        product_ = product0;
    }

    RandomWords operator()(Words blocks) const {
        const Words product0 = multiply(blocks, kFactor0);
        const Words product1 = multiply(high(product0) ^ step_and_key_, kFactor1);
        return rounds<2>(high(product1) ^ product_and_key_, product1, product0 ^ high_and_key_, product_);
    }

  private:
    Words step_and_key_, product_and_key_, high_and_key_, product_;
};

// random[i] = bits of element i % kBlockElements of a block that lane block_in(i / kBlockElements % kWords) of
// counters(i / kBlockElements / kWords * kWords) holds, for `blocks` blocks, or up to kWords - 1 more. Elements 2i and
// 2i + 1 of a block take the low and the high half of output word i, which is the order of the halves in memory on a
// little-endian machine.
template <typename BlocksOf, typename Counters>
inline void generate(const BlocksOf& blocks_of, const Counters& counters, uint16_t* random, int64_t blocks) {
    for (int64_t group = 0; group < blocks; group += kWords) {
        const RandomWords words = blocks_of(counters(group));
        put_blocks(words.words01, words.words23, random + group * kBlockElements);
    }
}

// random[i] = bits of element i % kBlockElements of block block_of(i / kBlockElements). Blocks from `blocks` on may be
// left out.
template <typename BlockOf>
inline void random_blocks(const Philox& stream, const BlockOf& block_of, uint16_t random[kBlocks * kBlockElements],
                          int64_t blocks = kBlocks) {
    const auto counters = [&](int64_t group) {
        Words counter{};
        for (int lane = 0; lane < kWords; ++lane) counter[lane] = block_of(group + block_in(lane));
        return counter;
    };
    generate(Blocks(stream), counters, random, blocks);
}

// random[i] = bits of element first * kBlockElements + i, for `blocks` blocks, and up to kWords - 1 more.
inline void random_bits(const Philox& stream, uint64_t first, uint16_t* random, int64_t blocks = kBlocks) {
    Words order;
    for (int lane = 0; lane < kWords; ++lane) order[lane] = static_cast<uint64_t>(block_in(lane));
    const auto counters = [&](int64_t group) { return order + (first + static_cast<uint64_t>(group)); };
    const uint64_t high_half = first >> 32, past = first + static_cast<uint64_t>(blocks) + kWords;
    if (past >> 32 == high_half)
        generate(NearBlocks(stream, high_half), counters, random, blocks);
    else
        generate(Blocks(stream), counters, random, blocks);
}

// random[i] = byte i % kBlockBytes of block first + i / kBlockBytes: the same words, whose bytes are in the order of a
// little-endian machine's memory. random: on a multiple of 2.
inline void random_bytes(const Philox& stream, uint64_t first, uint8_t* random, int64_t blocks) {
    random_bits(stream, first, reinterpret_cast<uint16_t*>(random), blocks);
}

}  // namespace gqc::GQC_ISA
