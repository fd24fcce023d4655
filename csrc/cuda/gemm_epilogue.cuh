// From exact integer sums to the values of a product.
#pragma once

#include "cuda/absmax.cuh"
#include "cuda/vector.cuh"

// The largest number that is rounded to 0.
__device__ __forceinline__ float largest_zero(int64_t dtype) {
    return dtype == Dtype::kFloat32 ? 0.0f : __uint_as_float(dtype == Dtype::kBfloat16 ? 0x00008000u : 0x33000000u);
}

// What a product gets beside its sums, as kernels are given it; all but b_scale may be null or 0.
struct Extras {
    const float* b_scale;
    const float* bias;       // a float a column
    const float* row_scale;  // a float a row
    int64_t relu;
};

// (float(sum) * scale + bias) * factor, and 0 for what is below `least`; each step is rounded.
struct Epilogue {
    float scale, least;
    const float *bias, *row_scale;

    __device__ __forceinline__ Epilogue(float a_scale, const Extras& extras)
        : scale(__fmul_rn(a_scale, *extras.b_scale)),
          least(extras.relu ? 0.0f : __uint_as_float(0xff800000u)),
          bias(extras.bias),
          row_scale(extras.row_scale) {}

    // What changes no number where there is none.
    __device__ __forceinline__ float bias_of(int64_t column) const { return bias ? bias[column] : -0.0f; }
    __device__ __forceinline__ float factor_of(int64_t row) const { return row_scale ? row_scale[row] : 1.0f; }

    template <typename Sum>
    __device__ __forceinline__ float value(Sum sum, float bias_of_column, float factor_of_row) const {
        const float y = __fmul_rn(__fadd_rn(__fmul_rn(static_cast<float>(sum), scale), bias_of_column), factor_of_row);
        return y < least ? 0.0f : y;  // a NaN stays
    }
};
