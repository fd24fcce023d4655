// Floats to elements of a tensor, past the caches where it is large.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/scalar.h"
#include "cpu/stream.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {

// A vector of kStreamedVector bytes. streamed: past the caches; `to` is a multiple of them then.
template <typename V>
inline void put_vector(V x, void* to, bool streamed) {
    if (streamed)
        stream_vector(&x, to);
    else
        std::memcpy(to, &x, sizeof x);
}

#if defined(__AVX512BW__) || defined(__AVX2__)
// Writes as many as fill vectors; returns how many.
inline int64_t write_vectors(const float* from, int64_t count, bfloat16* out, bool streamed) {
    const int64_t whole = count / kBfloats * kBfloats;
    for (int64_t i = 0; i < whole; i += kBfloats)
        put_vector(high_halves(in_bfloat16(load_wide(from + i)), in_bfloat16(load_wide(from + i + kWide))), out + i,
                   streamed);
    return whole;
}
#endif

// Elements of `out` as store_all() writes them. streamed: past the caches; scratch: for `count` of them then.
inline void write_all(const float* from, int64_t count, float* out, float*, bool streamed) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    if (streamed)
        stream(from, bytes, out);
    else if (from != out)
        std::memcpy(out, from, static_cast<size_t>(bytes));
}
template <typename T>
inline void write_all(const float* from, int64_t count, T* out, T* scratch, bool streamed) {
    T* const to = streamed ? scratch : out;
    store_all(from, count, to);
    if (streamed) stream(to, count * static_cast<int64_t>(sizeof(T)), out);
}
#if defined(__AVX512BW__) || defined(__AVX2__)
inline void write_all(const float* from, int64_t count, bfloat16* out, bfloat16*, bool streamed) {
    const bool aligned = reinterpret_cast<uintptr_t>(out) % kStreamedVector == 0;
    const int64_t whole = write_vectors(from, count, out, streamed && aligned);
    for (int64_t i = whole; i < count; ++i) store(&out[i], from[i]);
}
#endif

}  // namespace gqc::GQC_ISA
