// Symmetric quantization of a tensor to at most 8 bits with one scale (Tango, SC'23, section 3.1).

#include <cmath>
#include <cstring>

#include "common/kernel.h"
#include "common/philox.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kChunk = kBlocks * kBlockElements;

template <typename T>
float absmax(int64_t threads, const T* x, int64_t n) {
    uint32_t largest = 0;
#pragma omp parallel for simd reduction(max : largest) num_threads(team(threads, n)) schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t m = magnitude(load(x[i]));
        largest = m > largest ? m : largest;
    }
    return float_of(largest);
}

// clamp(floor(x * inverse + r), -limit, limit); clamping first keeps the conversion to int in range.
inline int8_t rounded(float x, float inverse, float limit, float r) {
    float y = x * inverse + r;
    y = y > -limit ? y : -limit;
    y = y < limit ? y : limit;
    const int32_t truncated = static_cast<int32_t>(y);
    return static_cast<int8_t>(truncated - (static_cast<float>(truncated) > y));
}

template <bool stochastic, typename T>
void quantize_chunk(const Philox& stream, const T* x, int64_t first, int64_t count, float inverse, float limit,
                    int8_t* q) {
    alignas(64) uint16_t random[kChunk];
    if (stochastic) random_bits(stream, static_cast<uint64_t>(first / kBlockElements), random);
    for (int64_t i = 0; i < count; ++i) {
        const float r = stochastic ? static_cast<float>(random[i]) * (1.0f / 65536.0f) : 0.5f;
        q[first + i] = rounded(load(x[first + i]), inverse, limit, r);
    }
}

template <bool stochastic, typename T>
void quantize(int64_t threads, const T* x, int64_t n, float inverse, float limit, const Philox& stream, int8_t* q) {
    const int64_t whole = n / kChunk;
#pragma omp parallel for num_threads(team(threads, n)) schedule(static)
    for (int64_t c = 0; c < whole; ++c) quantize_chunk<stochastic>(stream, x, c * kChunk, kChunk, inverse, limit, q);
    quantize_chunk<stochastic>(stream, x, whole * kChunk, n - whole * kChunk, inverse, limit, q);
}

// The factor of a tensor whose largest magnitude is `absmax`; 0 where every q is 0.
float inverse_scale(float absmax, float limit, float* scale) {
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

template <typename T>
void dequantize(int64_t threads, const int8_t* q, float scale, int64_t n, T* out) {
#pragma omp parallel for simd num_threads(team(threads, n)) schedule(static)
    for (int64_t i = 0; i < n; ++i) store(&out[i], static_cast<float>(q[i]) * scale);
}

}  // namespace

// x: n floats, or bfloat16 where is_bf16; out: one float, 0 for an empty tensor, NaN if x holds a NaN, else Inf if it
// holds an Inf.
GQC_KERNEL(absmax)(int64_t threads, const void* x, int64_t is_bf16, int64_t n, float* out) {
    typed(x, is_bf16, [&](auto* values) { *out = absmax(threads, values, n); });
    return nullptr;
}

// largest: one float, at least the largest |x|, or null to look for it; seed: two int64, or null to round to
// nearest; q: n bytes; scale: one float.
GQC_KERNEL(quantize)(int64_t threads, const void* x, int64_t is_bf16, int64_t n, const float* largest,
                     const int64_t* seed, int64_t node, int64_t bits, int64_t stochastic, int8_t* q, float* scale) {
    const float limit = static_cast<float>((1 << (bits - 1)) - 1);
    static const int64_t unused[2] = {};
    const Philox stream(stochastic ? seed : unused, node);
    typed(x, is_bf16, [&](auto* values) {
        const float inverse = inverse_scale(largest ? *largest : absmax(threads, values, n), limit, scale);
        if (inverse == 0)
            std::memset(q, 0, static_cast<size_t>(n));
        else if (stochastic)
            quantize<true>(threads, values, n, inverse, limit, stream, q);
        else
            quantize<false>(threads, values, n, inverse, limit, stream, q);
    });
    return nullptr;
}

// out: n floats, or bfloat16 where is_bf16.
GQC_KERNEL(dequantize)(int64_t threads, const int8_t* q, const float* scale, int64_t n, int64_t is_bf16, void* out) {
    typed(out, is_bf16, [&](auto* values) { dequantize(threads, q, *scale, n, values); });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
