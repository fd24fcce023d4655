// Products whose contracted index blocks share: sums of its parts, and what adds them up.

#include "cuda/gemm_blocks.cuh"
#include "cuda/gemm_output.cuh"
#include "cuda/gemm_parts.cuh"

// parts[p][i][j] = sum over the contracted indices p * part .. of a(i, k) b(k, j), for part <= 131072, a multiple of
// kChunk. a: lines along k, [m, k], or [k, m]; b: [n, k] or [k, n]. Blocks: 128 rows each along x, 128 columns along y,
// parts along z.
GQC_GLOBAL(256, 1)
qgemm_parts(const void* a, int64_t a_packed, int64_t a_along_k, const void* b, int64_t b_packed, int64_t b_along_k,
            int64_t m, int64_t n, int64_t k, int64_t part, int32_t* parts) {
    multiply_parts<Bytes, false>(a, a_packed, a_along_k, b, b_packed, b_along_k, m, n, k, part, parts);
}
GQC_EXPORT(qgemm_parts)

// As qgemm_parts for int8 operands [k, m] and [k, n] on 16-byte boundaries, m and n multiples of 16: weights'
// gradients.
GQC_GLOBAL(256, kBlocks)
qgemm_parts_whole(const void* a, const void* b, int64_t m, int64_t n, int64_t k, int64_t part, int32_t* parts) {
    multiply_parts<Bytes, true>(a, 0, 0, b, 0, 0, m, n, k, part, parts);
}
GQC_EXPORT(qgemm_parts_whole)

// Calls use(row, column, y, inside) for each value of the output, by the first warp of a block, whose lanes are at
// neighbouring columns. Parts are added in 64 bits; warps of a block share the parts of 32 columns of a row.
template <typename Use>
__device__ __forceinline__ void add_parts(const int32_t* parts, int64_t count, int64_t m, int64_t n,
                                          const Epilogue& epilogue, const Use& use) {
    constexpr int kWarps = 8;
    GQC_SHARED(int64_t, sums, kWarps* kWarp);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane_id();
    for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
        const int32_t* part = parts + row * n + column;
        int64_t sum = 0;
        if (column < n)
#pragma unroll 4
            for (int64_t p = warp_id(); p < count; p += kWarps) sum += part[p * m * n];
        sums[static_cast<int>(threadIdx.x)] = sum;
        __syncthreads();
        if (warp_id() == 0) {
#pragma unroll
            for (int w = 1; w < kWarps; ++w) sum += sums[w * kWarp + lane_id()];
            const bool inside = column < n;
            use(row, column, epilogue.value(sum, inside ? epilogue.bias_of(column) : 0.0f, epilogue.factor_of(row)),
                inside);
        }
        __syncthreads();
    }
}

// The bits of 32 neighbours, called by a warp.
__device__ __forceinline__ void store_positive_of_lanes(uint8_t* positive, int64_t row, int64_t column, int64_t n,
                                                        bool bit) {
    const uint32_t bits = __ballot_sync(kAllLanes, bit);
    if (lane_id() % kEight == 0 && column < n)
        positive[row * ((n + kEight - 1) / kEight) + column / kEight] = static_cast<uint8_t>(bits >> lane_id());
}

// parts: [count, m, n], count may be 0; the rest as qgemm_rows_*. Blocks: a column group of 32 each along x, rows along
// y.
GQC_GLOBAL(256)
qgemm_add_parts(const int32_t* parts, int64_t count, int64_t m, int64_t n, const float* a_scale, const float* b_scale,
                const float* bias, const float* row_scale, int64_t relu, int64_t dtype, void* out, uint8_t* positive,
                float* absmax) {
    GQC_SHARED(uint32_t, scratch, kWarp);
    uint32_t seen = 0;
    add_parts(parts, count, m, n, Epilogue(*a_scale, {b_scale, bias, row_scale, relu}),
              [&](int64_t row, int64_t column, float y, bool inside) {
                  if (positive != nullptr)
                      store_positive_of_lanes(positive, row, column, n, inside && !(y <= largest_zero(dtype)));
                  if (!inside) return;
                  seen = larger(seen, magnitude(y));
                  const int64_t at = row * n + column;
                  if (out == nullptr) return;
                  if (dtype == Dtype::kFloat32)
                      static_cast<float*>(out)[at] = y;
                  else
                      static_cast<uint16_t*>(out)[at] =
                          dtype == Dtype::kBfloat16 ? from_float<bfloat16>(y).bits : from_float<float16>(y).bits;
              });
    raise_absmax(absmax, magnitude(rounded(dtype, __uint_as_float(seen))), scratch);
}
GQC_EXPORT(qgemm_add_parts)

GQC_GLOBAL(256)
qgemm_add_parts_int8(const int32_t* parts, int64_t count, int64_t m, int64_t n, const float* a_scale,
                     const float* b_scale, const float* bias, const float* row_scale, int64_t relu, int64_t dtype,
                     const float* absmax, float limit, const int64_t* seed, int64_t node, int8_t* q, float* scale,
                     uint8_t* positive) {
    const Rounding round(*absmax, limit);
    const RoundingBits random(seed, node);
    if (grid_thread() == 0 && blockIdx.y == 0) *scale = round.scale;
    add_parts(parts, count, m, n, Epilogue(*a_scale, {b_scale, bias, row_scale, relu}),
              [&](int64_t row, int64_t column, float y, bool inside) {
                  if (positive != nullptr)
                      store_positive_of_lanes(positive, row, column, n, inside && !(y <= largest_zero(dtype)));
                  if (inside) {
                      const int64_t at = row * n + column;
                      q[at] = static_cast<int8_t>(round(rounded(dtype, y), random.above_128(at)));
                  }
              });
}
GQC_EXPORT(qgemm_add_parts_int8)
