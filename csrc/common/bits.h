// Unsigned values of 1, 2 or 4 bits, packed into bytes from the low bits on: value i of a row stands at bit i * bits of
// it. A row starts at a byte, so the last one may have unused bits, which are 0.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/intrinsics.h"
#include "common/kernel.h"

namespace gqc::GQC_ISA {

inline int64_t packed_bytes(int64_t width, int64_t bits) {
    return (width * bits + 7) / 8;
}

// What one byte packs, a byte each, in a word; packed() and unpacked() move neighbours together and apart in halves,
// which compilers vectorize.
template <int bits>
struct BitWord;

template <>
struct BitWord<1> {
    using Word = uint64_t;
    static uint8_t packed(Word x) {
        x &= 0x0101010101010101u;
        x = (x | x >> 7) & 0x0003000300030003u;
        x = (x | x >> 14) & 0x0000000f0000000fu;
        return static_cast<uint8_t>(x | x >> 28);
    }
    static Word unpacked(uint8_t byte) {
        Word x = byte;
        x = (x | x << 28) & 0x0000000f0000000fu;
        x = (x | x << 14) & 0x0003000300030003u;
        return (x | x << 7) & 0x0101010101010101u;
    }
};

template <>
struct BitWord<2> {
    using Word = uint32_t;
    static uint8_t packed(Word x) {
        x &= 0x03030303u;
        x = (x | x >> 6) & 0x000f000fu;
        return static_cast<uint8_t>(x | x >> 12);
    }
    static Word unpacked(uint8_t byte) {
        Word x = byte;
        x = (x | x << 12) & 0x000f000fu;
        return (x | x << 6) & 0x03030303u;
    }
};

template <>
struct BitWord<4> {
    using Word = uint16_t;
    static uint8_t packed(Word x) { return static_cast<uint8_t>((x & 0x0fu) | (x >> 4 & 0xf0u)); }
    static Word unpacked(uint8_t byte) { return static_cast<Word>((byte & 0x0fu) | (byte & 0xf0u) << 4); }
};

// Packs `count` values, a multiple of kPackedVector. Products with 1 and a power of two add neighbours shifted.
#if defined(__AVX512F__)
constexpr int64_t kPackedVector = 64;
#elif defined(__AVX2__)
constexpr int64_t kPackedVector = 32;
#endif
#if defined(__AVX2__)
template <int bits>
inline void pack_vectors(const uint8_t* __restrict values, int64_t count, uint8_t* __restrict packed) {
    for (int64_t at = 0; at < count; at += kPackedVector, packed += kPackedVector * bits / 8) {
#    if defined(__AVX512F__)
        const __m512i all = _mm512_loadu_si512(values + at);
        if constexpr (bits == 1) {
            const uint64_t word = _mm512_test_epi8_mask(all, _mm512_set1_epi8(1));
            std::memcpy(packed, &word, sizeof word);
        } else {
            const __m512i low = _mm512_and_si512(all, _mm512_set1_epi8((1 << bits) - 1));
            const __m512i pairs = _mm512_maddubs_epi16(low, _mm512_set1_epi16(bits == 2 ? 0x0401 : 0x1001));
            if constexpr (bits == 2) {
                const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
                const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, fours);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(packed), bytes);
            } else {
                const __m256i bytes = _mm512_maskz_cvtepi16_epi8(0xffffffffu, pairs);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed), bytes);
            }
        }
#    else
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + at));
        if constexpr (bits == 1) {
            const int word = _mm256_movemask_epi8(_mm256_slli_epi16(all, 7));
            std::memcpy(packed, &word, sizeof word);
        } else {
            const __m256i low = _mm256_and_si256(all, _mm256_set1_epi8((1 << bits) - 1));
            const __m256i pairs = _mm256_maddubs_epi16(low, _mm256_set1_epi16(bits == 2 ? 0x0401 : 0x1001));
            const __m256i sums = bits == 2 ? _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00100001)) : pairs;
            const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
            if constexpr (bits == 2) {
                const __m128i words = _mm_packus_epi32(first, second);
                _mm_storel_epi64(reinterpret_cast<__m128i*>(packed), _mm_packus_epi16(words, words));
            } else {
                _mm_storeu_si128(reinterpret_cast<__m128i*>(packed), _mm_packus_epi16(first, second));
            }
        }
#    endif
    }
}
#endif

// The low bits of `width` bytes. spare: a word's bytes may be read from the last values on, which costs less.
template <int bits>
inline void pack_bits(const uint8_t* __restrict values, int64_t width, uint8_t* __restrict packed, bool spare = false) {
    using Word = typename BitWord<bits>::Word;
    constexpr int64_t kCount = sizeof(Word);
    const int64_t whole = width / kCount, rest = width % kCount;
    int64_t i = 0;
#if defined(__AVX2__)
    i = width / kPackedVector * (kPackedVector / kCount);
    pack_vectors<bits>(values, i * kCount, packed);
#endif
    for (; i < whole; ++i) {
        Word word;
        std::memcpy(&word, values + i * kCount, sizeof word);
        packed[i] = BitWord<bits>::packed(word);
    }
    if (rest) {
        Word word = 0;
        std::memcpy(&word, values + whole * kCount, spare ? sizeof word : static_cast<size_t>(rest));
        packed[whole] = static_cast<uint8_t>(BitWord<bits>::packed(word) & ((1u << rest * bits) - 1));
    }
}

// As pack_bits; spare: a word's bytes may be written from the last values on.
template <int bits>
inline void unpack_bits(const uint8_t* __restrict packed, int64_t width, uint8_t* __restrict values,
                        bool spare = false) {
    using Word = typename BitWord<bits>::Word;
    constexpr int64_t kCount = sizeof(Word);
    const int64_t whole = width / kCount, rest = width % kCount;
    for (int64_t i = 0; i < whole; ++i) {
        const Word word = BitWord<bits>::unpacked(packed[i]);
        std::memcpy(values + i * kCount, &word, sizeof word);
    }
    if (rest) {
        const Word word = BitWord<bits>::unpacked(packed[whole]);
        std::memcpy(values + whole * kCount, &word, spare ? sizeof word : static_cast<size_t>(rest));
    }
}

}  // namespace gqc::GQC_ISA
