// Floats to elements of a tensor, past the caches where it is large.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/scalar.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

#if defined(__AVX512BW__) || defined(__AVX2__)
constexpr int64_t kRoundedTogether = kStreamedVector / 2;

// As store(), a vector of elements from two of floats.
#    if defined(__AVX512BW__)
inline __m512i rounded_bits(const float* from) {
    const __m512 x = _mm512_loadu_ps(from);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
}
inline __m512i rounded_together(const float* from) {
    alignas(64) constexpr uint16_t kHighHalves[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i first = rounded_bits(from), second = rounded_bits(from + kRoundedTogether / 2);
    return _mm512_permutex2var_epi16(first, _mm512_load_si512(kHighHalves), second);
}
#    else
inline __m256i rounded_bits(const float* from) {
    const __m256 x = _mm256_loadu_ps(from);
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan), 16);
}
inline __m256i rounded_together(const float* from) {
    constexpr int kInOrder = 0xd8;
    const __m256i first = rounded_bits(from), second = rounded_bits(from + kRoundedTogether / 2);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), kInOrder);
}
#    endif

// Writes as many as fill vectors; returns how many.
inline int64_t write_vectors(const float* from, int64_t count, bfloat16* out, bool streamed) {
    const int64_t whole = count / kRoundedTogether * kRoundedTogether;
    for (int64_t i = 0; i < whole; i += kRoundedTogether) {
        const auto rounded = rounded_together(from + i);
        if (streamed)
            stream_vector(&rounded, out + i);
        else
            std::memcpy(out + i, &rounded, sizeof rounded);
    }
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
