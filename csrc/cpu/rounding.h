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

// The element whose magnitude_bits() are given.
template <typename T, typename Bits>
inline float of_magnitude(Bits bits) {
    T x;
    std::memcpy(&x, &bits, sizeof x);
    return load(x);
}

constexpr int64_t kRoundedChunk = 512;  // elements whose random bytes are made at once
static_assert(kRoundedChunk % (kWords * kBlockBytes) == 0);

template <typename T>
inline float absmax(int64_t threads, const T* x, int64_t n) {
    decltype(magnitude_bits(*x)) largest = 0;
#pragma omp parallel for simd reduction(max : largest) num_threads(team(threads, n)) schedule(static)
    for (int64_t i = 0; i < n; ++i) {
        const auto m = magnitude_bits(x[i]);
        largest = m > largest ? m : largest;
    }
    return of_magnitude<T>(largest);
}

// Whether a caller's guess of a largest magnitude is one (runtime/last_absmax.py).
inline bool is_guess(float absmax) {
    return is_finite(absmax) && absmax > 0;
}

// clamp(floor(x * inverse + r), -limit, limit); clamping first keeps the conversion to int in range.
inline int8_t rounded(float x, float inverse, float limit, float r) {
    float y = x * inverse + r;
    y = y > -limit ? y : -limit;
    y = y < limit ? y : limit;
    const int32_t truncated = static_cast<int32_t>(y);
    return static_cast<int8_t>(truncated - (static_cast<float>(truncated) > y));
}

// What a random byte adds before the floor: the middle of the byte's part of 256, which in the mean is 1/2, exactly.
inline float fraction_of(uint8_t random) {
    return static_cast<float>(2 * random + 1) * (1.0f / 512.0f);
}

#if defined(__AVX2__)
// fraction_of() of kWide bytes. A float whose bytes are 0x43, 0, the random one and 0x80 is 128 more, so no conversion
// is needed.
inline Floats fractions_of(const uint8_t* random) {
    constexpr int32_t kAbove = 0x43000080;
#    if defined(__AVX512F__)
    constexpr __mmask64 kSecondBytes = 0x2222222222222222;
    const Ints order = Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} << 8;
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(random)));
    const Ints above = (Ints)_mm512_mask_shuffle_epi8(_mm512_set1_epi32(kAbove), kSecondBytes, bytes, (__m512i)order);
#    else
    constexpr int32_t kNone = static_cast<int32_t>(0x80800080);
    const Ints order = Ints{0, 1, 2, 3, 4, 5, 6, 7} << 8 | kNone;
    const __m256i bytes = _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(random)));
    const Ints above = (Ints)_mm256_shuffle_epi8(bytes, (__m256i)order) | kAbove;
#    endif
    return (Floats)above - 128.0f;
}

// rounded() of kWide floats but for the lower limit, which put_bytes() sees to.
template <bool stochastic>
inline Ints floored(Floats x, const uint8_t* random, float inverse, float limit) {
    Floats y = x * inverse;
    if (stochastic)
        y = y + fractions_of(random);
    else
        y = y + 0.5f;
#    if defined(__AVX512F__)
    const __m512 most = _mm512_set1_ps(limit);
    return (Ints)_mm512_cvt_roundps_epi32(_mm512_min_ps(most, (__m512)y), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#    else
    const __m256 most = _mm256_set1_ps(limit);
    return (Ints)_mm256_cvttps_epi32(_mm256_floor_ps(_mm256_min_ps(most, (__m256)y)));
#    endif
}

// Four vectors as bytes, at least -limit; what is below the range of int stands for a number below -limit. streamed:
// past the caches, to a multiple of kStreamedVector.
inline void put_bytes(Ints a, Ints b, Ints c, Ints d, int limit, int8_t* out, bool streamed) {
#    if defined(__AVX512F__)
    const __m512i ab = _mm512_packs_epi32((__m512i)a, (__m512i)b), cd = _mm512_packs_epi32((__m512i)c, (__m512i)d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i least = _mm512_set1_epi8(static_cast<int8_t>(-limit));
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_max_epi8(_mm512_packs_epi16(ab, cd), least));
    if (streamed)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out), bytes);
    else
        _mm512_storeu_si512(out, bytes);
#    else
    const __m256i ab = _mm256_packs_epi32((__m256i)a, (__m256i)b), cd = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i least = _mm256_set1_epi8(static_cast<int8_t>(-limit));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_max_epi8(_mm256_packs_epi16(ab, cd), least), order);
    if (streamed)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(out), bytes);
    else
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
#    endif
}
#endif

// q[i] = rounded x[i]; random: a byte of each element where rounding is stochastic.
template <bool stochastic, typename T>
inline void round_run(const T* x, const uint8_t* random, int64_t count, float inverse, float limit, int8_t* q,
                      [[maybe_unused]] bool streamed) {
    int64_t i = 0;
#if defined(__AVX2__)
    const auto at = [&](int64_t j) {
        return floored<stochastic>(load_wide(x + j), stochastic ? random + j : nullptr, inverse, limit);
    };
    streamed = streamed && reinterpret_cast<uintptr_t>(q) % kStreamedVector == 0;
    for (; i + 4 * kWide <= count; i += 4 * kWide)
        put_bytes(at(i), at(i + kWide), at(i + 2 * kWide), at(i + 3 * kWide), static_cast<int>(limit), q + i, streamed);
#endif
    for (; i < count; ++i) {
        const float r = stochastic ? fraction_of(random[i]) : 0.5f;
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

    // q[i] = rounded x[i] for `count` elements of a tensor from `first` on, which is a multiple of kBlockBytes.
    // streamed: q is written past the caches (cpu/stream.h).
    template <typename T>
    void apply(const T* x, int64_t first, int64_t count, int8_t* q, bool streamed = false) const {
        if (inverse == 0)
            std::memset(q, 0, static_cast<size_t>(count));
        else if (stochastic)
            apply_chunks(x, first, count, q, streamed);
        else
            round_run<false>(x, nullptr, count, inverse, limit, q, streamed);
    }

  private:
    static constexpr int64_t kNoSeed[2] = {};

    template <typename T>
    void apply_chunks(const T* x, int64_t first, int64_t count, int8_t* q, bool streamed) const {
        alignas(64) uint8_t random[kRoundedChunk];
        for (int64_t at = 0; at < count; at += kRoundedChunk) {
            const int64_t chunk = count - at < kRoundedChunk ? count - at : kRoundedChunk;
            const uint64_t block = static_cast<uint64_t>((first + at) / kBlockBytes);
            random_bytes(stream, block, random, (chunk + kBlockBytes - 1) / kBlockBytes);
            round_run<true>(x + at, random, chunk, inverse, limit, q + at, streamed);
        }
    }
};

}  // namespace gqc::GQC_ISA
