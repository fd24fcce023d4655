// Signed 4-bit values, two a byte, as csrc/common/int4.h lays them out: element i of a row is the low half of byte i /
// 2 where i is even, else the high half; a row starts at a byte.
#pragma once

#include "cuda/device.cuh"

__device__ __forceinline__ int64_t int4_bytes(int64_t width) {
    return (width + 1) / 2;
}

// Eight values, a byte each, from a word of eight halves and back.
__device__ __forceinline__ uint2 unpacked_eight(uint32_t halves) {
    uint32_t low = halves & 0x0f0f0f0fu, high = halves >> 4 & 0x0f0f0f0fu;
    low |= (low & 0x08080808u) * 30u;  // the sign into the upper half of each byte
    high |= (high & 0x08080808u) * 30u;
    return make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
}
__device__ __forceinline__ uint32_t packed_eight(uint2 values) {
    const uint32_t low = __byte_perm(values.x, values.y, 0x6420), high = __byte_perm(values.x, values.y, 0x7531);
    return (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4;
}

// Bytes of packed rows that a block works on together, for widths whose rows start anywhere in a word.
struct PackedTile {
    static constexpr int kBytes = 2048;

    int64_t width, bytes;  // of a row
    int64_t row, column;   // of the first byte; column counts bytes
    int count;             // bytes

    __device__ __forceinline__ PackedTile(int64_t tile, int64_t rows, int64_t width)
        : width(width), bytes(int4_bytes(width)) {
        const int64_t first = tile * kBytes, left = rows * bytes - first;
        row = first / bytes;
        column = first - row * bytes;
        count = left < kBytes ? static_cast<int>(left) : kBytes;
    }

    // Element in the low half of byte i, of all rows' elements; `pair`: the high half holds one too.
    __device__ __forceinline__ int64_t element(int i, bool& pair) const {
        int64_t r = row, c = column + i;
        if (bytes > kBytes) {
            if (c >= bytes) c -= bytes, r += 1;
        } else {
            const uint32_t within = static_cast<uint32_t>(c), a_row = static_cast<uint32_t>(bytes);
            r += within / a_row;
            c = within % a_row;
        }
        pair = 2 * c + 1 < width;
        return r * width + 2 * c;
    }
};
