// Unsigned values of 1, 2 or 4 bits, packed into bytes from the low bits on: value i of a row stands at bit i * bits of
// it. A row starts at a byte, so the last one may have unused bits, which are 0.
#pragma once

#include <cstdint>
#include <cstring>

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

// The low bits of `width` bytes. spare: a word's bytes may be read from the last values on, which costs less.
template <int bits>
inline void pack_bits(const uint8_t* __restrict values, int64_t width, uint8_t* __restrict packed, bool spare = false) {
    using Word = typename BitWord<bits>::Word;
    constexpr int64_t kCount = sizeof(Word);
    const int64_t whole = width / kCount, rest = width % kCount;
    for (int64_t i = 0; i < whole; ++i) {
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
