// SDDMM by dot products: for each edge and run of features (head), the product of the rows of its ends.

#include "cuda/sddmm.cuh"

// An int32 sum of 131,072 products of 127 * 127 has room to spare; 133,145 of them may overflow.
constexpr int64_t kExactSums = 131072;

template <typename Sum, typename A, typename B, int V>
__device__ __forceinline__ void add_products(const Pack<A, V>& a, const Pack<B, V>& b, Sum& sum) {
    if constexpr (kIsInteger<A> && kIsInteger<B>) {
        sum += a.dot(b);
    } else {
        float x[V], y[V];
        a.floats(x);
        b.floats(y);
#pragma unroll
        for (int i = 0; i < V; ++i) sum = __fmaf_rn(x[i], y[i], sum);
    }
}

// A lane fetches the packs of kAtOnce edges together, so that enough of them are under way.
template <typename Sum, int kAtOnce, typename A, typename B, int V>
__device__ __forceinline__ void dots_of_edges(bool is_int64, int64_t edges, const EdgeOperand<A>& lhs,
                                              const EdgeOperand<B>& rhs, float scale, int runs, int chunks,
                                              const Team& team, float* out) {
    const int64_t step = static_cast<int64_t>(team.edges) * kAtOnce;
#pragma unroll 1
    for (int64_t first = grid_warp() * step; first < edges; first += grid_warps() * step) {
        const A* a[kAtOnce];
        const B* b[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
            const int64_t edge = first + u * team.edges + team.edge, last = edges - 1;
            a[u] = lhs.row(edge < last ? edge : last, is_int64);
            b[u] = rhs.row(edge < last ? edge : last, is_int64);
        }
#pragma unroll 1
        for (int first_run = 0; first_run < runs; first_run += team.slots) {  // the same for all lanes: they reduce
            const int run = first_run + team.slot;
            Sum sums[kAtOnce] = {};
            if (run < runs) {
                const int lhs_start = lhs.start(run), rhs_start = rhs.start(run);
#pragma unroll 1
                for (int chunk = team.lane; chunk < chunks; chunk += team.lanes) {
                    Pack<A, V> x[kAtOnce];
                    Pack<B, V> y[kAtOnce];
#pragma unroll
                    for (int u = 0; u < kAtOnce; ++u) {
                        x[u].load(a[u], lhs_start + chunk * V);
                        y[u].load(b[u], rhs_start + chunk * V);
                    }
#pragma unroll
                    for (int u = 0; u < kAtOnce; ++u) add_products(x[u], y[u], sums[u]);
                }
            }
#pragma unroll 1
            for (int distance = team.lanes / 2; distance; distance /= 2) {
#pragma unroll
                for (int u = 0; u < kAtOnce; ++u) sums[u] += __shfl_xor_sync(kAllLanes, sums[u], distance);
            }
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
                const int64_t edge = first + u * team.edges + team.edge;
                if ((u & (team.lanes - 1)) == team.lane && run < runs && edge < edges) {
                    out[edge * runs + run] = scale * static_cast<float>(sums[u]);
                }
            }
        }
    }
}

template <typename A, typename B, int V>
__device__ __forceinline__ void sddmm_dot(bool is_int64, int64_t edges, const EdgeOperand<A>& lhs,
                                          const float* lhs_scale, const EdgeOperand<B>& rhs, const float* rhs_scale,
                                          int runs, int chunks, const Team& team, float* out) {
    const float scale = scale_of(lhs_scale) * scale_of(rhs_scale);
    if constexpr (kIsInteger<A> && kIsInteger<B>) {
        if (static_cast<int64_t>(chunks) * V > kExactSums) {
            dots_of_edges<int64_t, 1, A, B, V>(is_int64, edges, lhs, rhs, scale, runs, chunks, team, out);
        } else {
            dots_of_edges<int32_t, 4, A, B, V>(is_int64, edges, lhs, rhs, scale, runs, chunks, team, out);
        }
    } else {
        dots_of_edges<float, 4, A, B, V>(is_int64, edges, lhs, rhs, scale, runs, chunks, team, out);
    }
}

#define GQC_SDDMM_DOT(name, A, B, V)                                                                                 \
    GQC_GLOBAL(256, 3)                                                                                               \
    name(int64_t is_int64, int64_t edges, const A* lhs, const void* lhs_rows, int64_t lhs_row_size,                  \
         const int64_t* lhs_offsets, int64_t lhs_stride, const float* lhs_scale, const B* rhs, const void* rhs_rows, \
         int64_t rhs_row_size, const int64_t* rhs_offsets, int64_t rhs_stride, const float* rhs_scale, int64_t runs, \
         int64_t chunks, int64_t log_lanes, int64_t log_slots, float* out) {                                         \
        sddmm_dot<A, B, V>(is_int64, edges,                                                                          \
                           {lhs, lhs_rows, static_cast<int32_t>(lhs_row_size), lhs_offsets, lhs_stride}, lhs_scale,  \
                           {rhs, rhs_rows, static_cast<int32_t>(rhs_row_size), rhs_offsets, rhs_stride}, rhs_scale,  \
                           runs, chunks, Team(log_lanes, log_slots), out);                                           \
    }                                                                                                                \
    GQC_EXPORT(name)

GQC_SDDMM_DOT(sddmm_dot_f32_f32_by_4, float, float, 4)
GQC_SDDMM_DOT(sddmm_dot_f32_f32_by_1, float, float, 1)
GQC_SDDMM_DOT(sddmm_dot_int8_int8_by_16, int8_t, int8_t, 16)
GQC_SDDMM_DOT(sddmm_dot_int8_int8_by_4, int8_t, int8_t, 4)
GQC_SDDMM_DOT(sddmm_dot_int8_int8_by_1, int8_t, int8_t, 1)
GQC_SDDMM_DOT(sddmm_dot_int8_f32_by_4, int8_t, float, 4)
GQC_SDDMM_DOT(sddmm_dot_int8_f32_by_1, int8_t, float, 1)
GQC_SDDMM_DOT(sddmm_dot_int4_int4_by_32, Int4, Int4, 32)
GQC_SDDMM_DOT(sddmm_dot_int4_int4_by_4, Int4, Int4, 4)
GQC_SDDMM_DOT(sddmm_dot_int4_int4_by_1, Int4, Int4, 1)
GQC_SDDMM_DOT(sddmm_dot_int4_f32_by_4, Int4, float, 4)
GQC_SDDMM_DOT(sddmm_dot_int4_f32_by_1, Int4, float, 1)
