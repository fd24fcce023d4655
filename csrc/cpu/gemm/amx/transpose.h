// Transposition of words of 4 bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// out[j][i] = from[i][j] for 16 by 16 words of 4 bytes; `stride` bytes lie between rows of `from`. They may be the
// same.
inline void transpose_words(const void* from, int64_t stride, void* out) {
    __m512i rows[16], pairs[16], fours[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(static_cast<const char*>(from) + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // Part p of fours[i + c] is column 4 p + c of rows i .. i + 3.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    char* const to = static_cast<char*>(out);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i even0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x88);
        const __m512i even1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xdd);
        const __m512i odd1 = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xdd);
        _mm512_storeu_si512(to + c * 64, _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_storeu_si512(to + (4 + c) * 64, _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_storeu_si512(to + (8 + c) * 64, _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_storeu_si512(to + (12 + c) * 64, _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

}  // namespace gqc::GQC_ISA
