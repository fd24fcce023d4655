// Values of 1, 2 or 4 bits in bytes, low bits first, as csrc/common/bits.h lays them out.
#pragma once

#include "cuda/device.cuh"

// The low bits of four bytes, side by side.
template <int kBits>
__device__ __forceinline__ uint32_t packed_four(uint32_t values) {
    // A product adds copies of the bytes, shifted so that none overlap and the top byte holds the values in order.
    if constexpr (kBits == 1) return (values & 0x01010101u) * 0x01020408u >> 24;
    if constexpr (kBits == 2) return (values & 0x03030303u) * 0x01041040u >> 24;
    const uint32_t low = values & 0x0f0f0f0fu;
    return __byte_perm(low | low >> 4, 0u, 0x4420);
}

// Four values, a byte each, from the low 4 * kBits bits.
template <int kBits>
__device__ __forceinline__ uint32_t unpacked_four(uint32_t packed) {
    if constexpr (kBits == 1) return (packed & 15u) * 0x00204081u & 0x01010101u;
    if constexpr (kBits == 2) {
        const uint32_t pairs = (packed & 0xffu) | (packed & 0xf0u) << 12;
        return (pairs | pairs << 6) & 0x03030303u;
    }
    const uint32_t pairs = __byte_perm(packed, 0u, 0x4140);
    return (pairs | pairs << 4) & 0x0f0f0f0fu;
}
