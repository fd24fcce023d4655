// SPMM with a sum: neighbours' features in float32, int8 or 4 bits, each neighbour with one weight or one a head.

#include "cuda/spmm.cuh"

template <typename Load, typename Add, WeightKind kKind>
__device__ __forceinline__ void sum_neighbours(const Shares& shares, int64_t count, const Neighbours& neighbours,
                                               const void* x, const void* w, int64_t w_kind, int64_t w_width,
                                               int64_t run_length, const int64_t* w_offsets, int64_t width,
                                               int64_t lanes, int64_t chunks, typename Add::Sum* pieces, int* cut_rows,
                                               const Output& output, float* absmax) {
    GQC_SHARED(uint32_t, scratch, kWarp);
    const int first = static_cast<int>(blockIdx.y * chunks), all = static_cast<int>(width / Load::kValues);
    NeighbourSum<Load, Add, kKind> sum(neighbours, x, w, static_cast<int>(w_kind), w_width, run_length, w_offsets,
                                       width, static_cast<int>(lanes), first,
                                       min(first + static_cast<int>(chunks), all), pieces, output);
    sum_share(shares, count, sum, cut_rows);
    if (absmax) raise_absmax(absmax, sum.output.seen, scratch);
}

// out[v] = sum over the entries p of row v of x[x_rows[p]] * w, times the scales. A warp sums a share (rows.cuh) in
// groups of `lanes` lanes, block (i, j) 4 shares and features from j * chunks * kValues on.
//     x          rows of `width` values, a multiple of kValues, from 16 bytes (4 for int8x4, 8 for int4x16) on
//     w          weights, w_kind says of which type: run r of run_length features is multiplied with
//                w[w_rows[p] * w_width + w_offsets[r]]; without w_offsets it is element 0 of the row
//     x_scale, w_scale, absmax    or null; absmax is raised to the largest magnitude in out
//     factors, divide, dtype      see Output; factors are one a row, or null
//     resident   blocks on a multiprocessor, for which the compiler saves registers
//     pieces     [2 * count * width] of the type of the sums, cut_rows [count]: for join_sums
#define GQC_SPMM(name, Load, Add, kind, resident)                                                                      \
    GQC_GLOBAL(kShareThreads, resident)                                                                                \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,             \
         const void* x, const void* x_rows, const float* x_scale, const void* w, const void* w_rows,                   \
         const float* w_scale, int64_t w_kind, int64_t w_width, int64_t run_length, const int64_t* w_offsets,          \
         int64_t width, int64_t lanes, int64_t chunks, void* pieces, int* cut_rows, const float* factors,              \
         int64_t divide, int64_t dtype, void* out, float* absmax) {                                                    \
        sum_neighbours<Load, Add<Load>, kind>({indptr, is_int64, rows, entries, cost}, count,                          \
                                              {x_rows, w_rows, static_cast<int>(is_int64), static_cast<int>(entries)}, \
                                              x, w, w_kind, w_width, run_length, w_offsets, width, lanes, chunks,      \
                                              static_cast<Add<Load>::Sum*>(pieces), cut_rows,                          \
                                              Output(out, dtype, factors, divide, x_scale, w_scale), absmax);          \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_SPMM(spmm_f32x4, Float32x4, FloatSum, kAnyWeight, 7)
GQC_SPMM(spmm_int8x16, Int8x16, IntegerSum, kUnweighted, 6)
GQC_SPMM(spmm_int8x16_by_int8, Int8x16, IntegerSum, kInt8Weight, 5)
GQC_SPMM(spmm_int8x16_by_f32, Int8x16, FloatSum, kFloatWeight, 5)
GQC_SPMM(spmm_int8x4, Int8x4, IntegerSum, kAnyWeight, 7)
GQC_SPMM(spmm_int8x4_by_f32, Int8x4, FloatSum, kFloatWeight, 7)
GQC_SPMM(spmm_int4x16, Int4x16, IntegerSum, kUnweighted, 6)
GQC_SPMM(spmm_int4x16_by_f32, Int4x16, FloatSum, kFloatWeight, 5)

template <typename Sum, typename Total>
struct JoinSums {
    using Piece = Total;
    const Sum* pieces;
    int64_t width;
    Output output;

    __device__ __forceinline__ Piece nothing() const { return 0; }
    __device__ __forceinline__ Piece load(int slot, int feature) const {
        return static_cast<Total>(pieces[slot * width + feature]);
    }
    __device__ __forceinline__ void add(Piece& sum, Piece piece) const { sum += piece; }
    __device__ __forceinline__ void finish(int row, int feature, Piece sum) {
        output.put(row * width + feature, output.value(static_cast<float>(sum), output.factor(row)));
    }
};

// Puts together what the kernels above, or those of spmm_elements.cu, left of cut rows.
#define GQC_JOIN_SUMS(name, Sum, Total)                                                                     \
    GQC_GLOBAL(kJoinThreads)                                                                                \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,  \
         const float* x_scale, const float* w_scale, int64_t width, const Sum* pieces, const int* cut_rows, \
         const float* factors, int64_t divide, int64_t dtype, void* out, float* absmax) {                   \
        GQC_SHARED(Total, sums, kJoinThreads);                                                              \
        GQC_SHARED(uint32_t, scratch, kWarp);                                                               \
        JoinSums<Sum, Total> join{pieces, width, Output(out, dtype, factors, divide, x_scale, w_scale)};    \
        join_cut_rows(Shares(indptr, is_int64, rows, entries, cost), count, cut_rows, width, join, sums);   \
        if (absmax) raise_absmax(absmax, join.output.seen, scratch);                                        \
    }                                                                                                       \
    GQC_EXPORT(name)

GQC_JOIN_SUMS(join_sums_f32, float, float)
GQC_JOIN_SUMS(join_sums_int32, int, int64_t)
