// Symmetric quantization of a tensor to at most 8 bits with one scale (Tango, SC'23, section 3.1).

#include "cuda/absmax.cuh"

template <typename T>
__device__ __forceinline__ void absmax(const T* x, int64_t n, float* out) {
    GQC_SHARED(uint32_t, scratch, kWarp);
    uint32_t seen = 0;
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) seen = larger(seen, magnitude(to_float(x[i])));
    raise_absmax(out, seen, scratch);
}

// out: 0 on entry; the largest |x|, NaN if x holds a NaN, else Inf if it holds an Inf.
GQC_GLOBAL(256) absmax_f32(const float* x, int64_t n, float* out) {
    absmax(x, n, out);
}
GQC_EXPORT(absmax_f32)

GQC_GLOBAL(256) absmax_bf16(const bfloat16* x, int64_t n, float* out) {
    absmax(x, n, out);
}
GQC_EXPORT(absmax_bf16)
