// The steps of symmetric quantization with one scale a tensor (Tango, SC'23, section 3.1).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/philox.h"
#include "common/scalar.h"
#include "cpu/stream.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {

constexpr int64_t kRoundedChunk = 256;  // elements whose random bits are made at once

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

constexpr float kOfRandom = 1.0f / 65536.0f;  // random bits are a fraction of 1

#if defined(__AVX2__)
// kWide floats before they are packed.
inline Ints rounded(Floats x, float inverse, float limit, Floats r) {
    const Floats y = x * inverse + r;
#    if defined(__AVX512F__)
    const __m512 most = _mm512_set1_ps(limit), least = _mm512_set1_ps(-limit);
    const __m512 clamped = _mm512_min_ps(_mm512_max_ps((__m512)y, least), most);
    return (Ints)_mm512_cvt_roundps_epi32(clamped, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#    else
    const __m256 most = _mm256_set1_ps(limit), least = _mm256_set1_ps(-limit);
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps((__m256)y, least), most);
    return (Ints)_mm256_cvttps_epi32(_mm256_floor_ps(clamped));
#    endif
}

// Four vectors of small numbers as bytes.
inline void put_bytes(Ints a, Ints b, Ints c, Ints d, int8_t* out) {
#    if defined(__AVX512F__)
    const __m512i ab = _mm512_packs_epi32((__m512i)a, (__m512i)b), cd = _mm512_packs_epi32((__m512i)c, (__m512i)d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd)));
#    else
    const __m256i ab = _mm256_packs_epi32((__m256i)a, (__m256i)b), cd = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
#    endif
}
#endif

// q[i] = rounded x[i]; random: bits of each element where rounding is stochastic.
template <bool stochastic, typename T>
inline void round_run(const T* x, const uint16_t* random, int64_t count, float inverse, float limit, int8_t* q) {
    int64_t i = 0;
#if defined(__AVX2__)
    const auto at = [&](int64_t j) {
        const Floats half = broadcast<kWide>(0.5f);
        const Floats r = stochastic ? to_float<kWide>(load_halves(random + j)) * kOfRandom : half;
        return rounded(load_wide(x + j), inverse, limit, r);
    };
    for (; i + 4 * kWide <= count; i += 4 * kWide)
        put_bytes(at(i), at(i + kWide), at(i + 2 * kWide), at(i + 3 * kWide), q + i);
#endif
    for (; i < count; ++i) {
        const float r = stochastic ? static_cast<float>(random[i]) * kOfRandom : 0.5f;
        q[i] = rounded(load(x[i]), inverse, limit, r);
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
    // streamed: q is written past the caches (cpu/stream.h).
    template <typename T>
    void apply(const T* x, int64_t first, int64_t count, int8_t* q, bool streamed = false) const {
        if (inverse == 0)
            std::memset(q, 0, static_cast<size_t>(count));
        else if (stochastic)
            apply_chunks<true>(x, first, count, q, streamed);
        else
            apply_chunks<false>(x, first, count, q, streamed);
    }

  private:
    static constexpr int64_t kNoSeed[2] = {};

    template <bool stochastic, typename T>
    void apply_chunks(const T* x, int64_t first, int64_t count, int8_t* q, bool streamed) const {
        alignas(64) uint16_t random[kRoundedChunk];
        alignas(64) int8_t scratch[kRoundedChunk];
        for (int64_t at = 0; at < count; at += kRoundedChunk) {
            const int64_t chunk = count - at < kRoundedChunk ? count - at : kRoundedChunk;
            if (stochastic) {
                const uint64_t block = static_cast<uint64_t>((first + at) / kBlockElements);
                random_bits(stream, block, random, (chunk + kBlockElements - 1) / kBlockElements);
            }
            round_run<stochastic>(x + at, random, chunk, inverse, limit, streamed ? scratch : q + at);
            if (streamed) gqc::GQC_ISA::stream(scratch, chunk, q + at);
        }
    }
};

}  // namespace gqc::GQC_ISA
