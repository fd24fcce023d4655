// Vectors of float32 beside the sums of dot.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/gemm/dot.h"

namespace gqc::GQC_ISA {

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));

inline Floats load_floats(const float* from) {
    Floats value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store_floats(float* to, Floats value) {
    std::memcpy(to, &value, sizeof value);
}

// As integers magnitudes order all floats, Inf and NaN on top.
inline Sums magnitudes(Floats x) {
    return (Sums)x & 0x7fffffffu;
}

// Bit i is set where lane i is not <= 0, so also where it is NaN.
inline uint32_t positive_lanes(Floats x) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_NLE_UQ);
#elif defined(__AVX2__)
    const __m256 positive = _mm256_cmp_ps((__m256)x, _mm256_setzero_ps(), _CMP_NLE_UQ);
    return static_cast<uint32_t>(_mm256_movemask_ps(positive));
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(!(x[lane] <= 0)) << lane;
    return bits;
#endif
}

// Calls f(integral_constant<int, vectors>), vectors from 1 to kVectors.
template <typename F, int vectors = kVectors>
inline void with_vectors(int count, const F& f, std::integral_constant<int, vectors> at_most = {}) {
    if constexpr (vectors > 1) {
        if (count < vectors) return with_vectors(count, f, std::integral_constant<int, vectors - 1>());
    }
    f(at_most);
}

}  // namespace gqc::GQC_ISA
