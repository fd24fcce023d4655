// From exact integer sums to the values of a product.
#pragma once

#include <cstdint>

#include "cpu/gemm/vector.h"

namespace gqc::GQC_ISA {

// y = float(sum) * scale, then + bias, * row_scale and ReLU; each step is rounded by itself.
struct Epilogue {
    float scale;
    const float* bias;       // whole vectors of floats, or null
    const float* row_scale;  // m floats or null
    bool relu;

    // For columns j0 .. j0 + vectors * kLanes of row i.
    template <int vectors>
    __attribute__((always_inline)) void apply(Floats (&y)[vectors], int64_t i, int64_t j0) const {
#pragma GCC unroll 4
        for (Floats& v : y) v = v * scale;
        if (bias) {
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) y[v] = y[v] + load_floats(bias + j0 + v * kLanes);
        }
        if (row_scale) {
            const float factor = row_scale[i];
#pragma GCC unroll 4
            for (Floats& v : y) v = v * factor;
        }
        if (relu) {
#pragma GCC unroll 4
            for (Floats& v : y) v = v < 0 ? Floats{} : v;  // a NaN and -0 stay, as in torch
        }
    }
};

}  // namespace gqc::GQC_ISA
