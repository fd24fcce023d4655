// Products of int8 matrices with exact integer sums: out = relu((float(sum) * (a_scale * b_scale) + bias) * row_scale),
// and the largest magnitude of out for the quantization that follows. The same numbers as csrc/cpu/kernels/qgemm.cpp
// gives.

#include "cuda/gemm_blocks.cuh"
#include "cuda/gemm_rows.cuh"

// b: the right operand, [lines, width] int8 or 4-bit values, lines along the contracted index or not; columns: how many
// the packed form has, a multiple of 128; out: see pack_right.
GQC_GLOBAL(128)
qgemm_pack(const void* b, int64_t packed, int64_t lines, int64_t width, int64_t along_k, int64_t columns,
           uint8_t* out) {
    pack_right(Operand<Bytes>(b, lines, width, packed, along_k != 0), columns, out);
}
GQC_EXPORT(qgemm_pack)

// a: [m, k] int8 or, where a_packed, 4-bit values; right: what qgemm_pack made of the right operand, with n rounded up
// to a multiple of the kernel's columns; bias: n floats or null; row_scale: m floats or null; dtype: of out, 0 float32,
// 1 bfloat16, 2 float16; out: [m, n], or null for the absmax alone; positive: [m, (n + 7) / 8] bytes or null; absmax: 0
// on entry; m, n, k > 0, k <= 131072. The kernels that copy want int8 on a 16-byte boundary and k % 16 == 0.
#define GQC_ROWS(name, columns, async)                                                                                 \
    GQC_GLOBAL(256, async ? kBlocks : 1)                                                                               \
    name(const void* a, int64_t a_packed, const uint8_t* right, int64_t m, int64_t n, int64_t k, const float* a_scale, \
         const float* b_scale, const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out,      \
         uint8_t* positive, float* absmax) {                                                                           \
        using Blocks = Split<columns, kWarpRows>;                                                                      \
        IntegerLeft<Bytes, Blocks::kRows, async> left(a, a_packed, a_scale, m, k, Blocks::tiles(m, n),                 \
                                                      Blocks::slabs(n));                                               \
        const FloatOutput output{{b_scale, bias, row_scale, relu}, dtype, out, positive};                              \
        multiply_rows<Bytes, Blocks, kWarpRows>(left, right, m, n, k, output, absmax);                                 \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_ROWS(qgemm_rows_128_copy, 128, true)
GQC_ROWS(qgemm_rows_128, 128, false)
GQC_ROWS(qgemm_rows_256_copy, 256, true)
GQC_ROWS(qgemm_rows_256, 256, false)
