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
    int64_t pitch;  // bytes from line to line
    bool packed;
    bool along_k;  // lines run along the contracted index
    bool vectors;  // every piece is whole and may be read at once

    __device__ __forceinline__ Operand(const void* values, int64_t lines, int64_t width, int64_t packed, bool along_k)
        : values(static_cast<const uint8_t*>(values)),
          lines(lines),
          width(width),
          pitch(packed ? int4_bytes(width) : width),
          packed(packed != 0),
          along_k(along_k),
          vectors(width % kPiece == 0 && is_aligned(values, packed ? kPiece / 2 : kPiece)) {}
};

__device__ __forceinline__ uint32_t masked(uint32_t word, int bytes) {
    return bytes >= 4 ? word : bytes <= 0 ? 0u : word & ((1u << (8 * bytes)) - 1u);
}

// out = `count` bytes from `from` on, a word after the other, then anything. Words are read where they lie; those that
// reach over an end of the matrix are put together from its bytes.
template <int words>
__device__ __forceinline__ void load_bytes(const Operand& x, const uint8_t* from, int count, uint32_t (&out)[words]) {
    const int shift = static_cast<int>(reinterpret_cast<uint64_t>(from) & 3u);
    const uint8_t *begin = x.values, *end = x.values + x.lines * x.pitch, *word = from - shift;
    uint32_t read[words + 1];
#pragma unroll
    for (int i = 0; i <= words; ++i) {
        read[i] = 0;
        if (4 * i >= shift + count) continue;
        if (word + 4 * i >= begin && word + 4 * i + 4 <= end) {
            read[i] = global_load<uint32_t>(word + 4 * i);
        } else {
#pragma unroll 1
            for (int b = 0; b < 4; ++b)
                if (word + 4 * i + b >= begin && word + 4 * i + b < end)
                    read[i] |= static_cast<uint32_t>(word[4 * i + b]) << (8 * b);
        }
    }
#pragma unroll
    for (int i = 0; i < words; ++i) out[i] = __funnelshift_r(read[i], read[i + 1], 8 * shift);
}

// Values at .. at + 15 of a line, a byte each; 0 for what is not in the matrix.
__device__ __forceinline__ uint4 load_piece(const Operand& x, int64_t line, int64_t at) {
    if (line >= x.lines || at >= x.width) return make_uint4(0, 0, 0, 0);
    const uint8_t* from = x.values + line * x.pitch + (x.packed ? at / 2 : at);
    const int count = x.width - at < kPiece ? static_cast<int>(x.width - at) : kPiece;
    uint4 piece;
    if (x.packed) {
        uint32_t halves[2];
        if (x.vectors) {
            const uint2 words = global_load<uint2>(from);
            halves[0] = words.x, halves[1] = words.y;
        } else {
            load_bytes(x, from, (count + 1) / 2, halves);
        }
        const uint2 low = unpacked_eight(halves[0]), high = unpacked_eight(halves[1]);
        piece = make_uint4(low.x, low.y, high.x, high.y);
    } else if (x.vectors) {
        return global_load<uint4>(from);
    } else {
        uint32_t words[4];
        load_bytes(x, from, count, words);
        piece = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return make_uint4(masked(piece.x, count), masked(piece.y, count - 4), masked(piece.z, count - 8),
                      masked(piece.w, count - 12));
}
