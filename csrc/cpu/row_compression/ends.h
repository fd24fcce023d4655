// The least and the largest element of each of many runs, and what a compressed run keeps of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/scalar.h"
#include "cpu/row_compression/runs.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {

inline Floats least_of(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}
inline Floats most_of(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

// sum + 0 * x: NaN once an x is NaN or Inf.
inline Floats add_nothing_of(Floats x, Floats sum) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)x, _mm512_setzero_ps(), (__m512)sum);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)x, _mm256_setzero_ps(), (__m256)sum);
#else
    return sum + x * 0.0f;
#endif
}

inline Ints lane_indices() {
    Ints lanes;
    for (int i = 0; i < kWide; ++i) lanes[i] = i;
    return lanes;
}

// `count` elements, fewer than kWide, and anything in the other lanes; `left`: elements that may be read.
template <typename T>
inline Floats load_some(const T* x, int64_t count, int64_t left) {
    if (left >= kWide) return load_wide(x);
    T some[kWide] = {};
    std::memcpy(some, x, static_cast<size_t>(count) * sizeof(T));
    return load_wide(some);
}

// Result i is what `of` makes of the lanes of vector i. Halves of vectors i and i + kWide / 2 are combined and come to
// lie side by side, then quarters of what this gives, and so on.
template <typename Of>
inline Floats across_lanes(Floats (&vectors)[kWide], const Of& of) {
    const Ints lanes = lane_indices(), low = (lanes & 1) * kWide + lanes / 2;
    for (int left = kWide / 2; left > 0; left /= 2)
        for (int i = 0; i < left; ++i) {
            const Floats a = vectors[i], b = vectors[i + left];
            vectors[i] = of(__builtin_shuffle(a, b, low), __builtin_shuffle(a, b, low + kWide / 2));
        }
    return vectors[0];
}

// Lanes of which the least and the largest are those of a run.
struct RunEnds {
    Floats low, high;

    void add(Floats x) {
        low = least_of(low, x);
        high = most_of(high, x);
    }
};

constexpr int kChecks = 4;  // sums that find what is not finite, side by side

// `left`: elements that may be read.
template <typename T>
inline RunEnds ends_of_run(const T* x, int64_t length, int64_t left, Floats (&checks)[kChecks]) {
    if (length < kWide) {
        const Floats some = load_some(x, length, left), first = Floats{} + load(*x);
        const Floats all = lane_indices() < static_cast<int32_t>(length) ? some : first;
        checks[0] = add_nothing_of(all, checks[0]);
        return {all, all};
    }
    const Floats last = load_wide(x + (length - kWide));  // overlaps the vector before
    checks[0] = add_nothing_of(last, checks[0]);
    RunEnds ends{last, last};
    int64_t at = 0;
    for (; at + kChecks * kWide <= length; at += kChecks * kWide) {
        Floats part[kChecks];
        for (int i = 0; i < kChecks; ++i) {
            part[i] = load_wide(x + at + i * kWide);
            checks[i] = add_nothing_of(part[i], checks[i]);
        }
        ends.low = least_of(ends.low, least_of(least_of(part[0], part[1]), least_of(part[2], part[3])));
        ends.high = most_of(ends.high, most_of(most_of(part[0], part[1]), most_of(part[2], part[3])));
    }
    for (; at + kWide < length; at += kWide) {
        const Floats part = load_wide(x + at);
        checks[1] = add_nothing_of(part, checks[1]);
        ends.add(part);
    }
    return ends;
}

// Ends of `count` runs from `run` on. Returns whether all elements are finite; a run in which one is not gets any ends.
template <typename T>
inline bool find_ends(const T* x, int64_t elements, Run run, int64_t count, float* least, float* most) {
    Floats checks[kChecks] = {};
    for (int64_t i = 0; i < count; i += kWide) {
        Floats lows[kWide], highs[kWide];
        const int64_t here = count - i < kWide ? count - i : kWide;
        for (int64_t j = 0; j < here; ++j, run.next()) {
            const RunEnds ends = ends_of_run(x + run.first(), run.count(), elements - run.first(), checks);
            lows[j] = ends.low;
            highs[j] = ends.high;
        }
        for (int64_t j = here; j < kWide; ++j) lows[j] = highs[j] = lows[0];
        put(least + i, across_lanes(lows, least_of));
        put(most + i, across_lanes(highs, most_of));
    }
    const Floats sum = (checks[0] + checks[1]) + (checks[2] + checks[3]);
    return sum_of_lanes<kWide, float>(sum) == 0;
}

// Ends of NaN for runs in which an element is not finite.
template <typename T>
inline void mark_not_finite(const T* x, Run run, int64_t count, float* least) {
    for (int64_t i = 0; i < count; ++i, run.next()) {
        bool finite = true;
        for (int64_t k = 0; k < run.count(); ++k) finite = finite && is_finite(load(x[run.first() + k]));
        if (!finite) least[i] = NAN;
    }
}

// To the next bfloat16 below, and above; Inf and NaN stay.
inline float bfloat16_below(float x) {
    const uint32_t bits = bits_of(x), up = bits >> 31 ? 0xffffu : 0u;
    return float_of((bits + up) & 0xffff0000u);
}
inline float bfloat16_above(float x) {
    return -bfloat16_below(-x);
}

// What a run keeps, its least element and the distance to the largest: NaN where an element is not finite or the
// distance overflows, so that all that is computed from them is. And how its elements become values: less `least`,
// times `factor`, which is 0 where every value is.
struct PieceStats {
    alignas(64) float least[kPieceRuns + kWide], factor[kPieceRuns + kWide];
    alignas(64) float zero[kPieceRuns + kWide], range[kPieceRuns + kWide];

    // units: the largest value.
    template <typename T>
    void find(const T* x, int64_t elements, const Run& run, int64_t count, float units, bool in_bfloat16) {
        if (!find_ends(x, elements, run, count, least, range)) mark_not_finite(x, run, count, least);
        in_bfloat16 ? of_ends<true>(count, units) : of_ends<false>(count, units);
    }

    void keep(int64_t run, int64_t count, bool in_bfloat16, void* zeros, void* ranges) const {
        in_bfloat16 ? keep_as<bfloat16>(run, count, zeros, ranges) : keep_as<float>(run, count, zeros, ranges);
    }

  private:
    template <bool in_bfloat16>
    void of_ends(int64_t count, float units) {
        for (int64_t i = 0; i < count; ++i) {
            const float low = least[i] + 0.0f;  // no -0, which would depend on the order of comparisons
            const float z = in_bfloat16 ? bfloat16_below(low) : low, distance = range[i] - z;
            const float r = in_bfloat16 ? bfloat16_above(distance) : distance, quotient = units / r;
            const bool finite = is_finite(z) & is_finite(r);
            zero[i] = finite ? z : NAN;
            range[i] = finite ? r : NAN;
            least[i] = z;
            factor[i] = finite & is_finite(quotient) ? quotient : 0.0f;
        }
    }

    template <typename S>
    void keep_as(int64_t run, int64_t count, void* zeros, void* ranges) const {
        for (int64_t i = 0; i < count; ++i) {
            store(static_cast<S*>(zeros) + run + i, zero[i]);
            store(static_cast<S*>(ranges) + run + i, range[i]);
        }
    }
};

}  // namespace gqc::GQC_ISA
