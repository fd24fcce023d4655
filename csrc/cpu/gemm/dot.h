// The inner step of integer matrix products: int32 sums of products of int8 pairs, a register tile at a time.
//
// A lane adds up kGroup products a step, so both operands are stored with kGroup consecutive k side by side:
//   AMX        tdpbssd: int8 by int8 in tiles (cpu/gemm/amx), kStep contracted indices at a time
//   VNNI       vpdpbusd (AVX-512 VNNI, AVX-VNNI): 4 products of an unsigned left and a signed right byte; left values
//              are stored with 128 added
//   elsewhere  pmaddwd: 2 products of int16; both operands are stored widened
// Sums wrap modulo 2^32, so the 128 * (sum of the right column) that vpdpbusd adds too much may be taken off at any
// time before the true sum is read.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/intrinsics.h"
#include "common/kernel.h"

namespace gqc::GQC_ISA {

#if defined(__AMX_INT8__)
using Left = int8_t;
using Right = int8_t;
constexpr int kGroup = 4, kStep = 64, kVectors = 4, kVectorBytes = 64;
constexpr int32_t kLeftOffset = 0;
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
using Left = uint8_t;
using Right = int8_t;
constexpr int32_t kLeftOffset = 128;
#    if defined(__AVX512VNNI__)
constexpr int kGroup = 4, kStep = kGroup, kVectors = 4, kVectorBytes = 64;
#    else
constexpr int kGroup = 4, kStep = kGroup, kVectors = 2, kVectorBytes = 32;
#    endif
#else
using Left = int16_t;
using Right = int16_t;
constexpr int kGroup = 2, kStep = kGroup, kVectors = 2;
constexpr int32_t kLeftOffset = 0;
#    if defined(__AVX2__)
constexpr int kVectorBytes = 32;
#    else
constexpr int kVectorBytes = 16;
#    endif
#endif

constexpr int kLanes = kVectorBytes / 4;     // columns of one vector of sums
constexpr int kColumns = kLanes * kVectors;  // columns and rows of the largest register tile
constexpr int kRows = kGroup == 4 ? 6 : 4;   // vpdpbusd takes so long that fewer sums than 10 would wait for it
constexpr int64_t kExactProducts = 131072;   // 127 * 127 * kExactProducts < 2^31

typedef uint32_t Sums __attribute__((vector_size(kVectorBytes)));

inline Left encode_left(int8_t value) {
    return static_cast<Left>(value + kLeftOffset);
}
inline Right encode_right(int8_t value) {
    return value;
}

inline Sums load_sums(const void* from) {
    Sums value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Sums broadcast(const Left* group) {
    uint32_t word;
    static_assert(kGroup * sizeof(Left) == sizeof word);
    std::memcpy(&word, group, sizeof word);
    return Sums{} + word;
}

inline Sums add_products(Sums sums, Sums left, Sums right) {
#if defined(__AVX512VNNI__)
    return (Sums)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)left, (__m512i)right);
#elif defined(__AVXVNNI__)
    return (Sums)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)left, (__m256i)right);
#elif defined(__AVX2__)
    return sums + (Sums)_mm256_madd_epi16((__m256i)left, (__m256i)right);
#elif defined(__SSE2__)
    return sums + (Sums)_mm_madd_epi16((__m128i)left, (__m128i)right);
#else
    typedef int16_t Halves __attribute__((vector_size(kVectorBytes)));
    const Halves l = (Halves)left, r = (Halves)right;
    for (int lane = 0; lane < kLanes; ++lane)
        sums[lane] += static_cast<uint32_t>(l[2 * lane] * r[2 * lane] + l[2 * lane + 1] * r[2 * lane + 1]);
    return sums;
#endif
}

// kRows rows of left: group g of row r at values + r * row_stride + g * group_stride.
struct LeftTile {
    const Left* values;
    int64_t row_stride;
    int64_t group_stride;
};

// sums[r][j] += left[r] . right[j] for kRows rows and vectors * kLanes columns; right is [groups][columns][kGroup].
template <int vectors>
inline void dot_tile(LeftTile left, const Right* right, int64_t groups, uint32_t* sums, int64_t sums_stride) {
    Sums tile[kRows][vectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) tile[r][v] = load_sums(sums + r * sums_stride + v * kLanes);
    for (int64_t g = 0; g < groups; ++g) {
        Sums column[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) column[v] = load_sums(right + v * kLanes * kGroup);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
            const Sums row = broadcast(left.values + r * left.row_stride);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) tile[r][v] = add_products(tile[r][v], row, column[v]);
        }
        left.values += left.group_stride;
        right += vectors * kLanes * kGroup;
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) std::memcpy(sums + r * sums_stride + v * kLanes, &tile[r][v], sizeof(Sums));
}

inline void dot_tile(int vectors, LeftTile left, const Right* right, int64_t groups, uint32_t* sums, int64_t stride) {
    switch (vectors) {
        case 1:
            return dot_tile<1>(left, right, groups, sums, stride);
        case 2:
            return dot_tile<2>(left, right, groups, sums, stride);
        case 3:
            return dot_tile<3>(left, right, groups, sums, stride);
        default:
            return dot_tile<kVectors>(left, right, groups, sums, stride);
    }
}

// excess[j] += what dot_tile adds too much to column j, because left values are stored with kLeftOffset.
inline void add_excess(int vectors, const Right* right, int64_t groups, uint32_t* excess) {
    if (kLeftOffset == 0) return;
    Left offset[kGroup];
    for (Left& value : offset) value = encode_left(0);
    for (int v = 0; v < vectors; ++v) {
        Sums sums = load_sums(excess + v * kLanes);
        for (int64_t g = 0; g < groups; ++g)
            sums = add_products(sums, broadcast(offset), load_sums(right + (g * vectors + v) * kLanes * kGroup));
        std::memcpy(excess + v * kLanes, &sums, sizeof sums);
    }
}

}  // namespace gqc::GQC_ISA
