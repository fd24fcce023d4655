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
