// Packed rows of any width, whose bytes do not stand in one order with their values.
#pragma once

#include "cuda/device.cuh"

// Bytes of packed rows that a block works on together; kOfByte: values that a byte packs.
template <int kOfByte>
struct PackedTile {
    static constexpr int kBytes = 2048;

    int64_t width, bytes;  // of a row
    int64_t row, column;   // of the first byte; column counts bytes
    int count;             // bytes

    static __device__ __forceinline__ int64_t bytes_of_row(int64_t width) { return (width + kOfByte - 1) / kOfByte; }
    static __device__ __forceinline__ int64_t tiles(int64_t rows, int64_t width) {
        return (rows * bytes_of_row(width) + kBytes - 1) / kBytes;
    }

    __device__ __forceinline__ PackedTile(int64_t tile, int64_t rows, int64_t width)
        : width(width), bytes(bytes_of_row(width)) {
        const int64_t first = tile * kBytes, left = rows * bytes - first;
        row = first / bytes;
        column = first - row * bytes;
        count = left < kBytes ? static_cast<int>(left) : kBytes;
    }

    // The first value of byte i, of all rows' values, and how many it packs.
    __device__ __forceinline__ int64_t value(int i, int& packs) const {
        int64_t r = row, c = column + i;
        if (bytes > kBytes) {
            if (c >= bytes) c -= bytes, r += 1;
        } else {
            const uint32_t within = static_cast<uint32_t>(c), a_row = static_cast<uint32_t>(bytes);
            r += within / a_row;
            c = within % a_row;
        }
        const int64_t left = width - c * kOfByte;
        packs = left < kOfByte ? static_cast<int>(left) : kOfByte;
        return r * width + c * kOfByte;
    }
};
