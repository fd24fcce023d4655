// Products of two packed matrices as they are, on GPUs whose tensor cores multiply 4-bit values (GQC_HAS_S4);
// on others launchers take the kernels of gemm.cu and gemm_parts.cu, which unpack them. The sums are the same integers.

#include "cuda/gemm_blocks.cuh"
#include "cuda/gemm_parts.cuh"
#include "cuda/gemm_rows.cuh"

// Not in a GPU's code that could not run it; nothing launches it there.
template <typename Run>
__device__ __forceinline__ void where_supported(const Run& run) {
#ifdef GQC_HAS_S4
    run();
#else
    __trap();
#endif
}

// As qgemm_pack for a packed operand, of which a chunk has 128 contracted indices.
GQC_GLOBAL(128)
qgemm_s4_pack(const void* b, int64_t lines, int64_t width, int64_t along_k, int64_t columns, uint8_t* out) {
    where_supported([&] { pack_right(Operand<Halves>(b, lines, width, 1, along_k != 0), columns, out); });
}
GQC_EXPORT(qgemm_s4_pack)

// As qgemm_rows_* for a packed left operand and what qgemm_s4_pack made. The kernels that copy want it on a 16-byte
// boundary and k % 32 == 0.
#define GQC_ROWS(name, columns, async)                                                                            \
    GQC_GLOBAL(256, async ? kBlocks : 1)                                                                          \
    name(const void* a, const uint8_t* right, int64_t m, int64_t n, int64_t k, const float* a_scale,              \
         const float* b_scale, const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out, \
         uint8_t* positive, float* absmax) {                                                                      \
        where_supported([&] {                                                                                     \
            using Blocks = Split<columns, kWarpRows>;                                                             \
            IntegerLeft<Halves, Blocks::kRows, async> left(a, 1, a_scale, m, k, Blocks::tiles(m, n),              \
                                                           Blocks::slabs(n));                                     \
            const FloatOutput output{{b_scale, bias, row_scale, relu}, dtype, out, positive};                     \
            multiply_rows<Halves, Blocks, kWarpRows>(left, right, m, n, k, output, absmax);                       \
        });                                                                                                       \
    }                                                                                                             \
    GQC_EXPORT(name)

GQC_ROWS(qgemm_s4_rows_128_copy, 128, true)
GQC_ROWS(qgemm_s4_rows_128, 128, false)
GQC_ROWS(qgemm_s4_rows_256_copy, 256, true)
GQC_ROWS(qgemm_s4_rows_256, 256, false)

// As qgemm_parts for packed operands; part: a multiple of 128.
GQC_GLOBAL(256, 1)
qgemm_s4_parts(const void* a, int64_t a_along_k, const void* b, int64_t b_along_k, int64_t m, int64_t n, int64_t k,
               int64_t part, int32_t* parts) {
    where_supported([&] { multiply_parts<Halves, false>(a, 1, a_along_k, b, 1, b_along_k, m, n, k, part, parts); });
}
GQC_EXPORT(qgemm_s4_parts)
