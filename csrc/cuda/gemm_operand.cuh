// Reading operands of a product: pieces of 16 bytes of a tile, from int8 or packed values on any boundary.
#pragma once

#include "cuda/int4.cuh"
#include "cuda/mma.cuh"
#include "cuda/vector.cuh"

constexpr int kPiece = 16;
constexpr int kChunk = 64;  // bytes of contracted indices that lie side by side in a tile

// What tiles hold and a warp multiplies: bytes, to which packed values are unpacked,
struct Bytes {
    static constexpr int kOfByte = 1;
    static __device__ __forceinline__ void multiply(int32_t (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
        mma_s8(d, a, b0, b1);
    }
};
// or packed values as they are.
struct Halves {
    static constexpr int kOfByte = 2;
    static __device__ __forceinline__ void multiply(int32_t (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
        mma_s4(d, a, b0, b1);
    }
};

// A matrix in lines of `width` values, packed in any case if tiles hold halves.
template <typename Format>
struct Operand {
    const uint8_t* values;
    int64_t lines, width;
    bool packed;
    bool along_k;  // lines run along the contracted index
    bool vectors;  // every piece is whole and may be read at once

    __device__ __forceinline__ Operand(const void* values, int64_t lines, int64_t width, int64_t packed, bool along_k)
        : values(static_cast<const uint8_t*>(values)),
          lines(lines),
          width(width),
          packed(packed != 0),
          along_k(along_k),
          vectors(width % (along_k ? kPiece * Format::kOfByte : kPiece) == 0 &&
                  is_aligned(values, packed && !(along_k && Format::kOfByte == 2) ? kPiece / 2 : kPiece)) {}

    // Bytes from line to line.
    __device__ __forceinline__ int64_t pitch() const { return packed ? int4_bytes(width) : width; }

    // Where value `at` of a line lies, of which `at` is even.
    __device__ __forceinline__ const uint8_t* place(int64_t line, int64_t at) const {
        return values + line * pitch() + (packed ? at / 2 : at);
    }
};

// How many there are from here to the end, as far as an int tells.
__device__ __forceinline__ int left(int64_t end, int64_t here) {
    constexpr int64_t kMany = 1 << 30;
    return static_cast<int>(end - here < kMany ? end - here : kMany);
}

__device__ __forceinline__ uint32_t masked(uint32_t word, int bytes) {
    return bytes >= 4 ? word : bytes <= 0 ? 0u : word & ((1u << (8 * bytes)) - 1u);
}

// The first bytes, then zeros.
__device__ __forceinline__ uint4 masked(uint4 piece, int bytes) {
    return make_uint4(masked(piece.x, bytes), masked(piece.y, bytes - 4), masked(piece.z, bytes - 8),
                      masked(piece.w, bytes - 12));
}

// Bytes first .. last - 1 of a word that reaches over an end of the matrix.
__device__ __forceinline__ uint32_t part_of_word(const uint8_t* word, int first, int last) {
    uint32_t value = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b)
        if (b >= first && b < last) value |= static_cast<uint32_t>(word[b]) << (8 * b);
    return value;
}

// Whether the matrix may end within a word that begins in a line: `lines` are left, itself counted, `pitch` bytes each.
__device__ __forceinline__ bool is_near_end(int64_t lines, int64_t pitch) {
    return (lines - 1) * pitch < 3;
}

// out = `count` bytes from `from` on, a word after the other, then anything. Words are read where they lie, except
// those that begin before the matrix, at `begin`, or, where it ends soon, after the bytes that are wanted.
template <int words>
__device__ __forceinline__ void load_bytes(const uint8_t* begin, const uint8_t* from, int count, bool ends_soon,
                                           uint32_t (&out)[words]) {
    const int shift = static_cast<int>(reinterpret_cast<uint64_t>(from) & 3u), end = shift + count;
    const uint8_t* word = from - shift;
    const int first = word < begin ? 1 : 0, last = ends_soon ? end / 4 : words + 1;  // words that are read whole
    uint32_t read[words + 1], end_word = 0;
    if (ends_soon && end % 4 != 0) end_word = part_of_word(word + end / 4 * 4, end < 4 ? shift : 0, end % 4);
#pragma unroll
    for (int i = 0; i <= words; ++i) {
        read[i] = i == last ? end_word : 0;
        if (4 * i < end && i >= first && i < last) read[i] = global_load<uint32_t>(word + 4 * i);
    }
    if (first != 0 && last > 0) read[0] = part_of_word(word, shift, end);
#pragma unroll
    for (int i = 0; i < words; ++i) out[i] = __funnelshift_r(read[i], read[i + 1], 8 * shift);
}

// 16 values of a matrix that begins at `begin`, from `from` on, a byte each; width: how many the line still has there,
// 0 is taken for those beyond.
__device__ __forceinline__ uint4 load_bytes_piece(const uint8_t* begin, const uint8_t* from, int width, bool ends_soon,
                                                  bool packed, bool vectors) {
    if (!packed && vectors) return global_load<uint4>(from);
    const int count = width < kPiece ? width : kPiece;
    uint4 piece;
    if (packed) {
        uint32_t halves[2];
        if (vectors) {
            const uint2 words = global_load<uint2>(from);
            halves[0] = words.x, halves[1] = words.y;
        } else {
            load_bytes(begin, from, (count + 1) / 2, ends_soon, halves);
        }
        const uint2 low = unpacked_eight(halves[0]), high = unpacked_eight(halves[1]);
        piece = make_uint4(low.x, low.y, high.x, high.y);
    } else {
        uint32_t words[4];
        load_bytes(begin, from, count, ends_soon, words);
        piece = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return masked(piece, count);
}

// A piece of a line that runs along the contracted index.
template <typename Format>
__device__ __forceinline__ uint4 load_piece(const uint8_t* begin, const uint8_t* from, int width, bool ends_soon,
                                            bool packed, bool vectors) {
    if constexpr (Format::kOfByte == 1) {
        return load_bytes_piece(begin, from, width, ends_soon, packed, vectors);
    } else {
        if (vectors) return global_load<uint4>(from);
        const int count = width < 2 * kPiece ? width : 2 * kPiece;
        uint32_t words[4];
        load_bytes(begin, from, (count + 1) / 2, ends_soon, words);
        uint4 piece = masked(make_uint4(words[0], words[1], words[2], words[3]), (count + 1) / 2);
        if (count % 2 != 0) {  // the last byte holds one value
            const int bit = count / 2 % 4 * 8 + 4, word = count / 8;
            const uint32_t kept = ~(0xfu << bit);
            piece.x &= word == 0 ? kept : ~0u;
            piece.y &= word == 1 ? kept : ~0u;
            piece.z &= word == 2 ? kept : ~0u;
            piece.w &= word == 3 ? kept : ~0u;
        }
        return piece;
    }
}

// 16 packed values of a line across the contracted index, then anything; width: how many the line still has.
__device__ __forceinline__ uint2 load_halves_across(const uint8_t* begin, const uint8_t* from, int width,
                                                    bool ends_soon, bool vectors) {
    if (vectors) return global_load<uint2>(from);
    uint32_t words[2];
    load_bytes(begin, from, width < kPiece ? (width + 1) / 2 : kPiece / 2, ends_soon, words);
    return make_uint2(words[0], words[1]);
}
