// Dropout whose random bits come from the counter-based generator and whose mask takes one bit an element. A dropped
// NaN or Inf gives NaN, as in torch.

#include "cuda/philox.cuh"
#include "cuda/vector.cuh"

// 16 bytes: what a thread reads and writes at once, so that a warp's accesses are one run.
template <typename T>
constexpr int kVector = 16 / sizeof(T);

__device__ __forceinline__ void load_vector(const float* from, float (&x)[4]) {
    const float4 v = global_load<float4>(from);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
template <typename T>
__device__ __forceinline__ void load_vector(const T* from, float (&x)[kEight]) {
    load_vectors(from, x);
}

// out[first + i] = x[first + i] * scale where bit i is set, else * 0, for a vector that starts before n.
template <typename T>
__device__ __forceinline__ void keep(const T* x, int64_t first, int64_t n, uint32_t bits, float scale, bool vectors,
                                     T* out) {
    if (vectors && first + kVector<T> <= n) {
        float values[kVector<T>];
        load_vector(x + first, values);
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) values[i] = __fmul_rn(values[i], bits >> i & 1u ? scale : 0.0f);
        return store_vector(out + first, values);
    }
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i)
        if (first + i < n)
            out[first + i] = from_float<T>(__fmul_rn(to_float(x[first + i]), bits >> i & 1u ? scale : 0.0f));
}

// A lane draws a block of random bits, which are 8 bits of the mask; vectors then take theirs from the lane that has
// them.
template <typename T>
__device__ __forceinline__ void drop(const T* x, int64_t n, const int64_t* seed, int64_t node, int64_t threshold,
                                     float scale, T* out, uint8_t* mask) {
    constexpr int kOfWarp = kWarp * kEight;
    const Philox stream(seed, node);
    const uint32_t least = static_cast<uint32_t>(threshold);
    const bool vectors = is_aligned(x, 16) && is_aligned(out, 16);
    const int64_t warps = grid_threads() / kWarp;
#pragma unroll 1
    for (int64_t start = grid_thread() / kWarp * kOfWarp; start < n; start += warps * kOfWarp) {
        const int64_t first = start + lane_id() * kEight;
        const uint32_t bits = kept_of_eight(stream.words(static_cast<uint64_t>(first / kEight)), least);
        if (first < n) mask[first / kEight] = static_cast<uint8_t>(bits & ((1u << count_of_eight(first, n)) - 1u));
#pragma unroll
        for (int v = 0; v < kEight / kVector<T>; ++v) {
            const int at = (v * kWarp + lane_id()) * kVector<T>;
            const uint32_t kept = __shfl_sync(kAllLanes, bits, at / kEight) >> (at % kEight);
            if (start + at < n) keep(x, start + at, n, kept, scale, vectors, out);
        }
    }
}

template <typename T>
__device__ __forceinline__ void drop_backward(const T* grad, int64_t n, const uint8_t* mask, float scale, T* out) {
    const bool vectors = is_aligned(grad, 16) && is_aligned(out, 16);
#pragma unroll 1
    for (int64_t at = grid_thread() * kVector<T>; at < n; at += grid_threads() * kVector<T>)
        keep(grad, at, n, static_cast<uint32_t>(mask[at / kEight]) >> (at % kEight), scale, vectors, out);
}

// x, out: n elements; seed: two numbers; mask: (n + 7) / 8 bytes, of which bit i of byte j says that element 8 j + i is
// kept, which is where its random number is at least `threshold`: 0 keeps every element, 65536 none.
#define GQC_DROPOUT(SUFFIX, T)                                                                                         \
    GQC_GLOBAL(256)                                                                                                    \
    dropout_##SUFFIX(const T* x, int64_t n, const int64_t* seed, int64_t node, int64_t threshold, float scale, T* out, \
                     uint8_t* mask) {                                                                                  \
        drop(x, n, seed, node, threshold, scale, out, mask);                                                           \
    }                                                                                                                  \
    GQC_EXPORT(dropout_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_DROPOUT)

#define GQC_DROPOUT_BACKWARD(SUFFIX, T)                                                                             \
    GQC_GLOBAL(256) dropout_backward_##SUFFIX(const T* grad, int64_t n, const uint8_t* mask, float scale, T* out) { \
        drop_backward(grad, n, mask, scale, out);                                                                   \
    }                                                                                                               \
    GQC_EXPORT(dropout_backward_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_DROPOUT_BACKWARD)
