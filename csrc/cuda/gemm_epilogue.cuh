// From exact integer sums to the output of a product and its largest magnitude.
#pragma once

#include "cuda/absmax.cuh"
#include "cuda/vector.cuh"

// out = float(sum) * scale + bias
template <typename T>
struct Epilogue {
    float scale;
    const float* bias;  // n floats or null
    T* out;             // [m, n]
    int64_t m, n;
    bool vectors;  // 8 columns may be written at once
    uint32_t seen = 0;

    __device__ __forceinline__ Epilogue(const float* a_scale, const float* b_scale, const float* bias, T* out,
                                        int64_t m, int64_t n)
        : scale(__fmul_rn(*a_scale, *b_scale)),
          bias(bias),
          out(out),
          m(m),
          n(n),
          vectors(n % kEight == 0 && is_aligned(out, 16)) {}

    template <typename Sum>
    __device__ __forceinline__ float value(Sum sum, float bias_of_column) {
        float y = __fmul_rn(static_cast<float>(sum), scale);
        if (bias) y = __fadd_rn(y, bias_of_column);
        return y;
    }

    __device__ __forceinline__ void saw(float y) { seen = larger(seen, magnitude(y)); }

    // Called by all threads of a block. Rounding to T is monotone, so the maximum is taken before it.
    template <typename Scratch>
    __device__ __forceinline__ void finish(float* absmax, Scratch& scratch) const {
        raise_absmax(absmax, magnitude(to_float(from_float<T>(__uint_as_float(seen)))), scratch);
    }
};
