// Whether kernels of an instruction set compute on this processor what the portable ones do: some processors and
// virtual machines that claim instructions have executed them wrongly.
#pragma once

#include <cstdint>

namespace self_test {

// One kernel of each family that has instructions of its own: products, rounding, sums of int8 rows, dot products.
using Qgemm = const char*(int64_t threads, const void* a, const float* a_scale, int64_t a_packed, const void* b,
                          const float* b_scale, int64_t b_packed, int64_t m, int64_t n, int64_t k, int64_t trans_a,
                          int64_t trans_b, const float* bias, const float* row_scale, int64_t relu, int64_t dtype,
                          void* out, float* absmax, uint8_t* positive);
using Quantize = const char*(int64_t threads, const void* x, int64_t dtype, int64_t n, const float* largest,
                             const int64_t* seed, int64_t node, int64_t bits, int64_t stochastic, int8_t* q,
                             float* scale);
using Qspmm = const char*(int64_t threads, int64_t op, int64_t is_int64, int64_t rows, int64_t entries,
                          const void* indptr, const void* lhs, const void* lhs_rows, const float* lhs_scale,
                          const void* rhs, const void* rhs_rows, const float* rhs_scale, int64_t packed,
                          const void* layout, const float* factors, int64_t divide, int64_t dtype, void* out,
                          float* absmax);
using GatBwd = const char*(int64_t threads, int64_t is_int64, int64_t sources, int64_t destinations, int64_t edges,
                           const void* in_indptr, const void* in_indices, const void* in_eids, const void* out_indptr,
                           const void* out_indices, const void* out_eids, const float* el, const float* er,
                           const float* largest, const float* total, const void* u, const float* u_scale,
                           const void* grad, const float* grad_scale, int64_t heads, int64_t width, float slope,
                           const int64_t* seed, int64_t node, int64_t threshold, float factor, float* statistics,
                           float* d_u, float* absmax, float* d_el, float* d_er);
using Mm = const char*(int64_t threads, const void* a, const void* b, int64_t m, int64_t n, int64_t k, int64_t trans_a,
                       int64_t trans_b, const float* factors, int64_t narrow_a, int64_t narrow_b, int64_t bf16x3,
                       float* out);

// Those of an instruction set, null where a lower one's are used.
struct Kernels {
    Qgemm* qgemm;
    Quantize* quantize;
    Qspmm* qspmm;
    GatBwd* gat_bwd;
};

// The name of the first kernel with other results than the portable one, or null.
const char* first_wrong(const Kernels& kernels, const Kernels& portable);

// Whether products of bfloat16 are right, which no other kernel computes.
bool multiplies_bfloat16(Mm* mm);

}  // namespace self_test
