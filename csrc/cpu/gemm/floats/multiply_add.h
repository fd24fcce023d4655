// Sums of products of floats, in one rounding where the instruction set can.
#pragma once

#include "cpu/gemm/vector.h"

namespace gqc::GQC_ISA {

inline Floats multiply_add(Floats x, Floats y, Floats sum) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#else
    return x * y + sum;
#endif
}

// A sum with a vector of zeros would be one: it turns -0 into 0.
inline Floats broadcast(float value) {
#if defined(__AVX512F__)
    return (Floats)_mm512_set1_ps(value);
#elif defined(__AVX2__)
    return (Floats)_mm256_set1_ps(value);
#else
    Floats lanes;
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = value;
    return lanes;
#endif
}

constexpr int64_t kStepProducts = 32;  // products of an element of left after which add_products calls step()

inline int64_t steps_of(int64_t k_count) {
    return (k_count + kStepProducts - 1) / kStepProducts;
}

// tile[r] += the product of row r of left with a panel of right, [k][vectors * kLanes]; both in order of k.
template <int vectors, typename Step>
inline __attribute__((always_inline)) void add_products(const float* const (&left)[kRows], const float* right,
                                                        int64_t k_count, Floats (&tile)[kRows][vectors],
                                                        const Step& step) {
    for (int64_t first = 0; first < k_count; first += kStepProducts) {
        const int64_t end = k_count - first < kStepProducts ? k_count : first + kStepProducts;
        step();
        for (int64_t k = first; k < end; ++k, right += vectors * kLanes) {
            Floats columns[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) columns[v] = load_floats(right + v * kLanes);
#pragma GCC unroll 6
            for (int r = 0; r < kRows; ++r) {
                const Floats value = broadcast(left[r][k]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) tile[r][v] = multiply_add(value, columns[v], tile[r][v]);
            }
        }
    }
}

}  // namespace gqc::GQC_ISA
