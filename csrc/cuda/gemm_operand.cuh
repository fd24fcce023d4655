// Reading operands of a product: pieces of 16 values as they lie in memory, int8 or packed, on any boundary.
#pragma once

#include "cuda/int4.cuh"
#include "cuda/vector.cuh"

constexpr int kPiece = 16;
constexpr int kChunk = 64;  // contracted indices that lie side by side in a tile

// A matrix in lines of `width` values.
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
          vectors(width % kPiece == 0 && is_aligned(values, packed ? kPiece / 2 : kPiece)) {}

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

// Bytes first .. last - 1 of a word that reaches over an end of the matrix.
__device__ __forceinline__ uint32_t part_of_word(const uint8_t* word, int first, int last) {
    uint32_t value = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b)
        if (b >= first && b < last) value |= static_cast<uint32_t>(word[b]) << (8 * b);
    return value;
}

// out = `count` bytes from `from` on, a word after the other, then anything. Words are read where they lie, except
// those that begin before the matrix, at `begin`, or end after its last line.
template <int words>
__device__ __forceinline__ void load_bytes(const uint8_t* begin, const uint8_t* from, int count, bool last_line,
                                           uint32_t (&out)[words]) {
    const int shift = static_cast<int>(reinterpret_cast<uint64_t>(from) & 3u), end = shift + count;
    const uint8_t* word = from - shift;
    const int first = word < begin ? 1 : 0, last = last_line ? end / 4 : words + 1;  // words that are read whole
    uint32_t read[words + 1], end_word = 0;
    if (last_line && end % 4 != 0) end_word = part_of_word(word + end / 4 * 4, end < 4 ? shift : 0, end % 4);
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
__device__ __forceinline__ uint4 load_piece(const uint8_t* begin, const uint8_t* from, int width, bool last_line,
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
            load_bytes(begin, from, (count + 1) / 2, last_line, halves);
        }
        const uint2 low = unpacked_eight(halves[0]), high = unpacked_eight(halves[1]);
        piece = make_uint4(low.x, low.y, high.x, high.y);
    } else {
        uint32_t words[4];
        load_bytes(begin, from, count, last_line, words);
        piece = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return make_uint4(masked(piece.x, count), masked(piece.y, count - 4), masked(piece.z, count - 8),
                      masked(piece.w, count - 12));
}
