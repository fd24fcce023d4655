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

// The first `count` lanes, from 1 on.
inline void store_part(float* to, Floats value, int64_t count) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)value);
#else
    std::memcpy(to, &value, static_cast<size_t>(count) * sizeof(float));
#endif
}

// All bits of the first `count` lanes.
inline Sums first_lanes(int64_t count) {
    Sums lanes;
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane < count ? ~0u : 0u;
    return lanes;
}

// As integers magnitudes order all floats, Inf and NaN on top.
inline Sums magnitudes(Floats x) {
    return (Sums)x & 0x7fffffffu;
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
