// Signed 4-bit values, two a byte: element i of a row is the low half of byte i / 2 where i is even, else the high
// half. A row starts at a byte, so an odd one leaves the last half byte unused (0).
#pragma once

#include <cstdint>

namespace gqc::GQC_ISA {

inline int64_t int4_bytes(int64_t width) {
    return (width + 1) / 2;
}

inline int8_t low_int4(uint8_t pair) {
    return static_cast<int8_t>(static_cast<int8_t>(pair << 4) >> 4);
}
inline int8_t high_int4(uint8_t pair) {
    return static_cast<int8_t>(static_cast<int8_t>(pair) >> 4);
}

// out[i] = encode(element i) of a packed row.
template <typename T, T (*encode)(int8_t)>
inline void unpack_int4(const uint8_t* __restrict from, int64_t width, T* __restrict out) {
    for (int64_t i = 0; i < width / 2; ++i) {
        out[2 * i] = encode(low_int4(from[i]));
        out[2 * i + 1] = encode(high_int4(from[i]));
    }
    if (width % 2) out[width - 1] = encode(low_int4(from[width / 2]));
}

inline int8_t as_int8(int8_t value) {
    return value;
}

inline void pack_int4(const int8_t* __restrict from, int64_t width, uint8_t* __restrict out) {
    for (int64_t i = 0; i < width / 2; ++i)
        out[i] = static_cast<uint8_t>((from[2 * i] & 15) | (static_cast<uint8_t>(from[2 * i + 1]) << 4));
    if (width % 2) out[width / 2] = static_cast<uint8_t>(from[width - 1] & 15);
}

}  // namespace gqc::GQC_ISA
