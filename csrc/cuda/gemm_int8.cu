// Products that are quantized as they are computed, once a run for their absmax alone has found that.

#include "cuda/gemm_blocks.cuh"
#include "cuda/gemm_rows.cuh"

// As qgemm_rows_* for int8 values: quantize of their output, of dtype, without storing that. absmax: of the output;
// limit, seed: as quantize takes them; q: [m, n]; scale: one float.
#define GQC_ROWS(name, columns, async)                                                                                 \
    GQC_GLOBAL(256, async ? kBlocks : 1)                                                                               \
    name(const void* a, int64_t a_packed, const uint8_t* right, int64_t m, int64_t n, int64_t k, const float* a_scale, \
         const float* b_scale, const float* bias, const float* row_scale, int64_t relu, int64_t dtype,                 \
         const float* absmax, float limit, const int64_t* seed, int64_t node, int8_t* q, float* scale,                 \
         uint8_t* positive) {                                                                                          \
        using Blocks = Split<columns, kWarpRows>;                                                                      \
        IntegerLeft<Bytes, Blocks::kRows, async> left(a, a_packed, a_scale, m, k, Blocks::tiles(m, n),                 \
                                                      Blocks::slabs(n));                                               \
        const Int8Output output{{b_scale, bias, row_scale, relu}, dtype, absmax, limit, seed, node, q, positive};      \
        multiply_rows<Bytes, Blocks, kWarpRows>(left, right, m, n, k, output, scale);                                  \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_ROWS(qgemm_rows_128_copy_int8, 128, true)
GQC_ROWS(qgemm_rows_128_int8, 128, false)
GQC_ROWS(qgemm_rows_256_copy_int8, 256, true)
GQC_ROWS(qgemm_rows_256_int8, 256, false)
