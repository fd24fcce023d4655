// Vectors of the width of the instruction set, written with the compiler's vector types. A vector of one lane is a
// scalar.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/intrinsics.h"
#include "common/kernel.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {

#if defined(__AVX512F__)
constexpr int kWidest = 16;
#elif defined(__AVX2__)
constexpr int kWidest = 8;
#else
constexpr int kWidest = 4;
#endif

template <typename T, int Lanes>
struct VectorType {
    typedef T type __attribute__((vector_size(sizeof(T) * Lanes)));
};
template <typename T>
struct VectorType<T, 1> {
    using type = T;
};
template <typename T, int Lanes>
using Vector = typename VectorType<T, Lanes>::type;

// An int32 sum of 131,072 products of 127 * 127 has room to spare; 133,145 of them may overflow.
constexpr int64_t kExactSums = 131072;

// Lanes for a run of `length` elements; the last vector of a run overlaps the one before it where the length is no
// multiple, so they must not be more than the length.
inline int lanes_for(int64_t length) {
    for (int lanes = kWidest; lanes >= 4; lanes /= 2) {
        if (lanes <= length) return lanes;
    }
    return 1;
}

// Calls body(integral_constant<int, lanes>).
template <typename Body>
void with_lanes(int lanes, const Body& body) {
    if constexpr (kWidest >= 16) {
        if (lanes == 16) return body(std::integral_constant<int, 16>());
    }
    if constexpr (kWidest >= 8) {
        if (lanes == 8) return body(std::integral_constant<int, 8>());
    }
    if (lanes == 4) return body(std::integral_constant<int, 4>());
    body(std::integral_constant<int, 1>());
}

// x in every lane. Subtracting zero keeps the sign of a zero, adding it would not.
template <int Lanes, typename T>
inline Vector<T, Lanes> broadcast(T x) {
    return x - Vector<T, Lanes>{};
}

template <int Lanes>
inline Vector<float, Lanes> to_float(Vector<float, Lanes> x) {
    return x;
}
template <int Lanes>
inline Vector<float, Lanes> to_float(Vector<int32_t, Lanes> x) {
    if constexpr (Lanes == 1) {
        return static_cast<float>(x);
    } else {
        return __builtin_convertvector(x, Vector<float, Lanes>);
    }
}

template <int Lanes>
inline Vector<int32_t, Lanes> widen(const int8_t* p) {
#if defined(__AVX512F__)
    if constexpr (Lanes == 16) {
        // The masked form: GCC 12 warns about an undefined value inside its plain one.
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return (Vector<int32_t, 16>)_mm512_maskz_cvtepi8_epi32(0xffff, bytes);
    }
#endif
#if defined(__AVX2__)
    if constexpr (Lanes == 8) {
        return (Vector<int32_t, 8>)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    if constexpr (Lanes == 4) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return (Vector<int32_t, 4>)_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
    }
#endif
    Vector<int32_t, Lanes> out{};
    if constexpr (Lanes == 1) {
        out = *p;
    } else {
        for (int i = 0; i < Lanes; ++i) out[i] = p[i];
    }
    return out;
}

// Lanes elements from p as T (float or int32_t); a step of 0 repeats the first one.
template <typename T, int Lanes, int Step, typename From>
inline Vector<T, Lanes> fetch(const From* p) {
    if constexpr (Step == 0) {
        return broadcast<Lanes>(static_cast<T>(*p));
    } else if constexpr (std::is_same_v<From, T>) {
        Vector<T, Lanes> out;
        std::memcpy(&out, p, sizeof out);
        return out;
    } else if constexpr (std::is_same_v<T, int32_t>) {
        return widen<Lanes>(p);
    } else {
        return to_float<Lanes>(widen<Lanes>(p));
    }
}

template <typename V, typename T>
inline void put(T* p, V x) {
    std::memcpy(p, &x, sizeof x);
}

// to[2 i] = even[i] and to[2 i + 1] = odd[i].
template <int Lanes, typename T>
inline void put_interleaved(T* to, Vector<T, Lanes> even, Vector<T, Lanes> odd) {
    decltype(even < odd) first_half{}, second_half{};  // integers as wide as T
    for (int i = 0; i < Lanes; ++i) {
        first_half[i] = i / 2 + i % 2 * Lanes;
        second_half[i] = first_half[i] + Lanes / 2;
    }
    put(to, __builtin_shuffle(even, odd, first_half));
    put(to + Lanes, __builtin_shuffle(even, odd, second_half));
}

// magnitude() of each lane, see common/scalar.h.
template <int Lanes>
inline Vector<int32_t, Lanes> magnitudes(Vector<float, Lanes> x) {
    Vector<int32_t, Lanes> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

template <typename V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

// Sum of all lanes, by halves.
template <int Lanes, typename T>
inline T sum_of_lanes(Vector<T, Lanes> x) {
    if constexpr (Lanes == 1) {
        return x;
    } else if constexpr (Lanes == 2) {
        return x[0] + x[1];
    } else {
        Vector<T, Lanes / 2> half[2];
        std::memcpy(half, &x, sizeof x);
        return sum_of_lanes<Lanes / 2, T>(half[0] + half[1]);
    }
}

template <int Lanes>
inline int32_t largest_lane(Vector<int32_t, Lanes> x) {
    if constexpr (Lanes == 1) {
        return x;
    } else {
        int32_t largest = x[0];
        for (int i = 1; i < Lanes; ++i) largest = larger(largest, x[i]);
        return largest;
    }
}

// exp(x) for x <= 0 within 2 units in the last place; 0 where the result would be denormal, NaN stays NaN.
template <int Lanes>
__attribute__((always_inline)) inline Vector<float, Lanes> exp_of_negative(Vector<float, Lanes> x) {
    constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves a rounded integer in the low bits
    const Vector<float, Lanes> shifted = x * 1.44269504f + kToInteger;
    Vector<int32_t, Lanes> power;
    std::memcpy(&power, &shifted, sizeof power);
    const Vector<float, Lanes> n = shifted - kToInteger;
    const Vector<float, Lanes> f = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vector<float, Lanes> y = f * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    const Vector<int32_t, Lanes> bits = (power - 0x4b400000 + 127) << 23;
    Vector<float, Lanes> scale;
    std::memcpy(&scale, &bits, sizeof scale);
    const Vector<float, Lanes> zero{};
    return x < -87.33f ? zero : y * scale;
}

}  // namespace gqc::GQC_ISA
