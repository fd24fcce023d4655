// From exact integer sums to the output of a product and its largest magnitude.
#pragma once

#include "cuda/absmax.cuh"

// out = float(sum) * scale + bias
struct Epilogue {
    float scale;
    const float* bias;  // a float a column, or null

    __device__ __forceinline__ Epilogue(const float* a_scale, const float* b_scale, const float* bias)
        : scale(__fmul_rn(*a_scale, *b_scale)), bias(bias) {}

    // -0 where there is none, which changes no number.
    __device__ __forceinline__ float bias_of(int64_t column) const { return bias ? bias[column] : -0.0f; }

    template <typename Sum>
    __device__ __forceinline__ float value(Sum sum, float bias_of_column) const {
        return __fadd_rn(__fmul_rn(static_cast<float>(sum), scale), bias_of_column);
    }
};

// raise_absmax for an output of type T of which the block has seen magnitudes before rounding, which is monotone.
template <typename T, typename Scratch>
__device__ __forceinline__ void raise_absmax_of_rounded(float* absmax, uint32_t seen, Scratch& scratch) {
    raise_absmax(absmax, magnitude(to_float(from_float<T>(__uint_as_float(seen)))), scratch);
}
