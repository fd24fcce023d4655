// From exact integer sums to the output of a product and its largest magnitude.
#pragma once

#include <cstdint>

#include "common/scalar.h"
#include "cpu/gemm/dot.h"

namespace gqc::GQC_ISA {

// Largest magnitudes column by column, so that no row needs a horizontal maximum.
struct Peaks {
    uint32_t lanes[kColumns] = {};

    uint32_t largest() const {
        uint32_t result = 0;
        for (const uint32_t lane : lanes) result = lane > result ? lane : result;
        return result;
    }
};

// out = float(sum) * scale + bias
template <typename Out>
struct Epilogue {
    float scale;
    const float* bias;  // n floats or null
    Out* out;           // [m, n]
    int64_t n;
    float* absmax;

    // Writes columns j0 .. j0+count, at most kColumns, of row i.
    template <typename Sum>
    void write(const Sum* __restrict sums, int64_t i, int64_t j0, int64_t count, Peaks& peaks) const {
        if (bias)
            write<Sum, true>(sums, bias + j0, scale, count, out + i * n + j0, peaks.lanes);
        else
            write<Sum, false>(sums, nullptr, scale, count, out + i * n + j0, peaks.lanes);
    }

    // Rounding to Out is monotone, so the maximum is taken before it.
    void finish(uint32_t largest) const {
        Out rounded;
        store(&rounded, float_of(largest));
        *absmax = load(rounded);
    }

  private:
    template <typename Sum, bool has_bias>
    static void write(const Sum* __restrict sums, const float* __restrict bias, float scale, int64_t count,
                      Out* __restrict out, uint32_t* __restrict peaks) {
        for (int64_t j = 0; j < count; ++j) {
            float y = static_cast<float>(sums[j]) * scale;
            if (has_bias) y = y + bias[j];
            store(&out[j], y);
            peaks[j] = magnitude(y) > peaks[j] ? magnitude(y) : peaks[j];
        }
    }
};

}  // namespace gqc::GQC_ISA
