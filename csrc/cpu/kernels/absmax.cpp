// Largest magnitude of a tensor.

#include "common/kernel.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {
namespace {

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

}  // namespace

// x: n floats, or bfloat16 where is_bf16; out: one float, 0 for an empty tensor, NaN if x holds a NaN, else Inf if it
// holds an Inf.
GQC_KERNEL(absmax)(int64_t threads, const void* x, int64_t is_bf16, int64_t n, float* out) {
  *out = is_bf16 ? absmax(threads, static_cast<const bfloat16*>(x), n)
                 : absmax(threads, static_cast<const float*>(x), n);
  return nullptr;
}

}  // namespace gqc::GQC_ISA
