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

}  // namespace gqc::GQC_ISA
