// Products of floats that are rounded to int8 as they are read, and whose int8 values are stored on the way.

#include "cuda/gemm_blocks.cuh"
#include "cuda/gemm_rows.cuh"

constexpr int kRowsOfWarp = 16;  // half of the others': their registers are for floats under way

// x: [m, k] of x_dtype; largest, limit, seed: as quantize takes them; q: [m, k], scale: one float, both as quantize
// gives them. The rest as qgemm_rows_*, for n of at most the kernel's columns, so that one block reads a row.
#define GQC_ROWS(name, columns)                                                                                \
    GQC_GLOBAL(256, kBlocks)                                                                                   \
    name(const void* x, int64_t x_dtype, const float* largest, float limit, const int64_t* seed, int64_t node, \
         int8_t* q, float* scale, const uint8_t* right, int64_t m, int64_t n, int64_t k, const float* b_scale, \
         const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out, uint8_t* positive, \
         float* absmax) {                                                                                      \
        using Blocks = Split<columns, kRowsOfWarp>;                                                            \
        QuantizedLeft<Blocks::kRows> left(x, x_dtype, m, k, largest, limit, seed, node, q);                    \
        if (grid_thread() == 0) *scale = left.scale();                                                         \
        const FloatOutput output{{b_scale, bias, row_scale, relu}, dtype, out, positive};                      \
        multiply_rows<Bytes, Blocks, kRowsOfWarp>(left, right, m, n, k, output, absmax);                       \
    }                                                                                                          \
    GQC_EXPORT(name)

GQC_ROWS(quantize_qgemm_128, 128)
GQC_ROWS(quantize_qgemm_256, 256)
