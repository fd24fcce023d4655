// SDDMM element by element: copy, add, sub, mul and div of the features of an edge's ends.

#include "cuda/sddmm.cuh"

// Numbered as _OPS of runtime/cuda/sddmm.py. The last two have their operands swapped.
enum MapOp : int64_t { kCopy, kAdd, kSub, kMul, kDiv, kSubFrom, kDivInto };

// The operation on all elements at once, so that it is chosen once.
template <int N>
__device__ __forceinline__ void apply(int op, float (&a)[N], float (&b)[N]) {
    if (op == kSubFrom || op == kDivInto) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float x = a[i];
            a[i] = b[i];
            b[i] = x;
        }
    }
    switch (op) {
        case kAdd:
#pragma unroll
            for (int i = 0; i < N; ++i) a[i] += b[i];
            break;
        case kSub:
        case kSubFrom:
#pragma unroll
            for (int i = 0; i < N; ++i) a[i] -= b[i];
            break;
        case kMul:
#pragma unroll
            for (int i = 0; i < N; ++i) a[i] *= b[i];
            break;
        case kDiv:
        case kDivInto:
#pragma unroll
            for (int i = 0; i < N; ++i) a[i] /= b[i];
            break;
    }
}

__device__ __forceinline__ void store(float* to, const float (&x)[4]) {
    global_store<float4>(to, make_float4(x[0], x[1], x[2], x[3]));
}
__device__ __forceinline__ void store(float* to, const float (&x)[1]) {
    *to = x[0];
}

// Values of pack number `chunk` of a run, times a scale; a step of 0 repeats the run's only element.
template <typename T, int V>
__device__ __forceinline__ void fetch(const T* row, int start, int chunk, int step, float scale, float* x) {
    float values[V];
    if (V == 1 || step) {
        Pack<T, V> pack;
        pack.load(row, start + chunk * V * step);
        pack.floats(values);
    } else {
        float one[1];
        Pack<T, 1> pack;
        pack.load(row, start);
        pack.floats(one);
#pragma unroll
        for (int i = 0; i < V; ++i) values[i] = one[0];
    }
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] = values[i] * scale;
}

// out[edge] = op(lhs * lhs_scale, rhs * rhs_scale); a product is scaled once, as on the CPU. The features are `runs`
// runs of `chunks` packs of V elements.
template <typename A, typename B, int V>
__device__ __forceinline__ void sddmm_map(int op, bool is_int64, int64_t edges, const EdgeOperand<A>& lhs,
                                          const float* lhs_scale_at, int lhs_step, const EdgeOperand<B>& rhs,
                                          const float* rhs_scale_at, int rhs_step, int runs, int chunks,
                                          const Team& team, float* out) {
    constexpr int kAtOnce = V == 1 ? 4 : 2;  // edges whose rows a lane fetches together
    float lhs_scale = scale_of(lhs_scale_at), rhs_scale = scale_of(rhs_scale_at), out_scale = 1.0f;
    if (op == kMul) {
        out_scale = lhs_scale * rhs_scale;
        lhs_scale = rhs_scale = 1.0f;
    }
    const int64_t step = static_cast<int64_t>(team.edges) * kAtOnce;
#pragma unroll 1
    for (int64_t first = grid_warp() * step; first < edges; first += grid_warps() * step) {
        const A* a[kAtOnce];
        const B* b[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
            const int64_t edge = first + u * team.edges + team.edge, last = edges - 1;
            a[u] = lhs.row(edge < last ? edge : last, is_int64);
            b[u] = op == kCopy ? nullptr : rhs.row(edge < last ? edge : last, is_int64);
        }
#pragma unroll 1
        for (int run = team.slot; run < runs; run += team.slots) {
            const int lhs_start = lhs.start(run), rhs_start = rhs.start(run);
#pragma unroll 1
            for (int chunk = team.lane; chunk < chunks; chunk += team.lanes) {
                float x[kAtOnce * V], y[kAtOnce * V];
#pragma unroll
                for (int u = 0; u < kAtOnce; ++u) fetch<A, V>(a[u], lhs_start, chunk, lhs_step, lhs_scale, x + u * V);
                if (op != kCopy) {
#pragma unroll
                    for (int u = 0; u < kAtOnce; ++u) {
                        fetch<B, V>(b[u], rhs_start, chunk, rhs_step, rhs_scale, y + u * V);
                    }
                    apply(op, x, y);
                }
#pragma unroll
                for (int u = 0; u < kAtOnce; ++u) {
                    const int64_t edge = first + u * team.edges + team.edge;
                    float z[V];
#pragma unroll
                    for (int i = 0; i < V; ++i) z[i] = x[u * V + i] * out_scale;
                    if (edge < edges) store(out + (edge * runs + run) * chunks * V + chunk * V, z);
                }
            }
        }
    }
}

#define GQC_SDDMM_MAP(name, A, B, V)                                                                                   \
    GQC_GLOBAL(256, 3)                                                                                                 \
    name(int64_t op, int64_t is_int64, int64_t edges, const A* lhs, const void* lhs_rows, int64_t lhs_row_size,        \
         const int64_t* lhs_offsets, int64_t lhs_stride, const float* lhs_scale, int64_t lhs_step, const B* rhs,       \
         const void* rhs_rows, int64_t rhs_row_size, const int64_t* rhs_offsets, int64_t rhs_stride,                   \
         const float* rhs_scale, int64_t rhs_step, int64_t runs, int64_t chunks, int64_t log_lanes, int64_t log_slots, \
         float* out) {                                                                                                 \
        sddmm_map<A, B, V>(op, is_int64, edges,                                                                        \
                           {lhs, lhs_rows, static_cast<int32_t>(lhs_row_size), lhs_offsets, lhs_stride}, lhs_scale,    \
                           lhs_step, {rhs, rhs_rows, static_cast<int32_t>(rhs_row_size), rhs_offsets, rhs_stride},     \
                           rhs_scale, rhs_step, runs, chunks, Team(log_lanes, log_slots), out);                        \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_SDDMM_MAP(sddmm_map_f32_f32_by_4, float, float, 4)
GQC_SDDMM_MAP(sddmm_map_f32_f32_by_1, float, float, 1)
GQC_SDDMM_MAP(sddmm_map_int8_int8_by_4, int8_t, int8_t, 4)
GQC_SDDMM_MAP(sddmm_map_int8_int8_by_1, int8_t, int8_t, 1)
GQC_SDDMM_MAP(sddmm_map_int8_f32_by_4, int8_t, float, 4)
GQC_SDDMM_MAP(sddmm_map_int8_f32_by_1, int8_t, float, 1)
GQC_SDDMM_MAP(sddmm_map_int4_int4_by_4, Int4, Int4, 4)
GQC_SDDMM_MAP(sddmm_map_int4_int4_by_1, Int4, Int4, 1)
GQC_SDDMM_MAP(sddmm_map_int4_f32_by_4, Int4, float, 4)
GQC_SDDMM_MAP(sddmm_map_int4_f32_by_1, Int4, float, 1)
