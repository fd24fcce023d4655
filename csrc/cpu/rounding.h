// The steps of symmetric quantization with one scale a tensor (Tango, SC'23, section 3.1).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/philox.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {

constexpr int64_t kRoundedChunk = kBlocks * kBlockElements;

template <typename T>
inline float absmax(int64_t threads, const T* x, int64_t n) {
    decltype(magnitude_bits(*x)) largest = 0;
#pragma omp parallel for simd reduction(max : largest) num_threads(team(threads, n)) schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        const auto m = magnitude_bits(x[i]);
        largest = m > largest ? m : largest;
    }
    T found;
    std::memcpy(&found, &largest, sizeof found);
    return load(found);
}

// clamp(floor(x * inverse + r), -limit, limit); clamping first keeps the conversion to int in range.
inline int8_t rounded(float x, float inverse, float limit, float r) {
    float y = x * inverse + r;
    y = y > -limit ? y : -limit;
    y = y < limit ? y : limit;
    const int32_t truncated = static_cast<int32_t>(y);
    return static_cast<int8_t>(truncated - (static_cast<float>(truncated) > y));
}

// q[i] = rounded x[i]. x are the elements of a tensor from `first` on, which is a multiple of kBlockElements.
template <bool stochastic, typename T>
inline void quantize_chunk(const Philox& stream, const T* x, int64_t first, int64_t count, float inverse, float limit,
                           int8_t* q) {
    alignas(64) uint16_t random[kRoundedChunk];
    alignas(64) float scratch[kRoundedChunk];
    if (stochastic) random_bits(stream, static_cast<uint64_t>(first / kBlockElements), random);
    const float* values = floats(x, count, scratch);
    for (int64_t i = 0; i < count; ++i) {
        const float r = stochastic ? static_cast<float>(random[i]) * (1.0f / 65536.0f) : 0.5f;
        q[i] = rounded(values[i], inverse, limit, r);
    }
}

// The factor of a tensor whose largest magnitude is `absmax`; 0 where every q is 0.
inline float inverse_scale(float absmax, float limit, float* scale) {
    const float inverse = limit / absmax;
    if (!is_finite(absmax)) {
        *scale = NAN;
        return 0;
    }
    if (!is_finite(inverse)) {  // all zero, or so small that its scale has no reciprocal
        *scale = 0;
        return 0;
    }
    *scale = absmax / limit;
    return inverse;
}

// How a tensor is rounded, once its largest magnitude is known.
struct Rounding {
    Philox stream;
    bool stochastic;
    float limit, inverse;

    // seed: null to round to nearest. Writes the scale.
    Rounding(const int64_t* seed, int64_t node, int64_t bits, bool stochastic, float absmax, float* scale)
        : stream(stochastic ? seed : kNoSeed, node),
          stochastic(stochastic),
          limit(static_cast<float>((1 << (bits - 1)) - 1)),
          inverse(inverse_scale(absmax, limit, scale)) {}

    // q[i] = rounded x[i] for `count` elements of a tensor from `first` on, which is a multiple of kBlockElements.
    template <typename T>
    void apply(const T* x, int64_t first, int64_t count, int8_t* q) const {
        if (inverse == 0)
            std::memset(q, 0, static_cast<size_t>(count));
        else if (stochastic)
            apply_chunks<true>(x, first, count, q);
        else
            apply_chunks<false>(x, first, count, q);
    }

  private:
    static constexpr int64_t kNoSeed[2] = {};

    template <bool stochastic, typename T>
    void apply_chunks(const T* x, int64_t first, int64_t count, int8_t* q) const {
        for (int64_t at = 0; at < count; at += kRoundedChunk) {
            const int64_t chunk = count - at < kRoundedChunk ? count - at : kRoundedChunk;
            quantize_chunk<stochastic>(stream, x + at, first + at, chunk, inverse, limit, q + at);
        }
    }
};

}  // namespace gqc::GQC_ISA
