// Products of matrices of integers on tensor cores.
#pragma once

#include "cuda/device.cuh"

// d += a b for a of 16 rows and b of 8 columns and 32 contracted indices, by a warp. Lane 4 g + t holds of row g, of
// row g + 8 (both of a) and of column g (of b) the words t and 4 + t of 4 contracted indices: a is {row g, row g + 8}
// of word t, then of word 4 + t. d: columns 2 t and 2 t + 1 of row g, then of row g + 8.
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
#if defined(GQC_EMULATED)
    const uint32_t words[4] = {a.x, a.y, a.z, a.w}, b[2] = {b0, b1};
    emu::mma_m16n8k32_s8(d, words, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else  // the same fragments are those of four smaller products
    const auto add = [](int32_t& d0, int32_t& d1, uint32_t a0, uint32_t b0) {
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d0), "+r"(d1)
            : "r"(a0), "r"(b0));
    };
    add(d[0], d[1], a.x, b0);
    add(d[2], d[3], a.y, b0);
    add(d[0], d[1], a.z, b1);
    add(d[2], d[3], a.w, b1);
#endif
}

// Where tensor cores multiply 4-bit values as they are: on sm_80 to sm_89. Others, sm_90 and later among them, have no
// such form, and packed operands are unpacked to int8 for them.
#if defined(GQC_EMULATED) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 900)
#    define GQC_HAS_S4
#endif

// As mma_s8 for 64 contracted indices, of which a word holds 8.
__device__ __forceinline__ void mma_s4(int32_t (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
#if defined(GQC_EMULATED)
    const uint32_t words[4] = {a.x, a.y, a.z, a.w}, b[2] = {b0, b1};
    emu::mma_m16n8k64_s4(d, words, b);
#elif defined(GQC_HAS_S4)
    asm("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#endif
}
