// Writes a slot of a tile to an output.
#pragma once

#include <cmath>

#include "cpu/pointwise/load.h"

namespace gqc::GQC_ISA {

inline void store_bool(const float* from, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(bits_of(from[i]) & 1u);
}

#if defined(__AVX2__)
// The lanes' first bits side by side.
inline void store_mask(Floats lanes, uint8_t* out) {
#    if defined(__AVX512F__)
    const uint16_t sixteen = _mm512_movepi32_mask((__m512i)lanes);
    std::memcpy(out, &sixteen, sizeof sixteen);
#    else
    *out = static_cast<uint8_t>(_mm256_movemask_ps((__m256)lanes));
#    endif
}
#endif

// Bits first .. first + count of a packed mask; first is a multiple of 8. The last byte is filled up with zeros.
inline void store_bits(const float* from, int64_t first, int64_t count, uint8_t* mask) {
    uint8_t* const bytes = mask + first / 8;
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + kWide <= count; i += kWide) store_mask(load_wide(from + i), bytes + i / 8);
#endif
    for (; i < count; i += 8) {
        uint32_t byte = 0;
        for (int64_t j = i; j < i + 8 && j < count; ++j) byte |= (bits_of(from[j]) & 1u) << (j - i);
        bytes[i / 8] = static_cast<uint8_t>(byte);
    }
}

// Largest magnitude of a tile and `seen`, as bits.
inline int32_t raise(const float* from, int64_t count, int32_t seen) {
    constexpr int kAtATime = 4;
    Ints most[kAtATime] = {};
    int64_t i = 0;
    for (; i + kAtATime * kWide <= count; i += kAtATime * kWide)
        for (int j = 0; j < kAtATime; ++j)
            most[j] = larger(most[j], bits_of(magnitude_of(load_wide(from + i + j * kWide))));
    const Ints all = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    int32_t largest = larger(seen, largest_lane<kWide>(all));
    for (; i < count; ++i) largest = larger(largest, static_cast<int32_t>(magnitude(from[i])));
    return largest;
}

// Adds `rows` rows of `width` elements, a few at a time in float32, and those sums in float64.
inline void add_rows(const float* from, int64_t rows, int64_t width, int64_t columns, float* scratch, double* sums) {
    constexpr int64_t kAtATime = 16;
    for (int64_t r = 0; r < rows; r += kAtATime) {
        const int64_t end = r + kAtATime < rows ? r + kAtATime : rows;
        std::memcpy(scratch, from + r * width, static_cast<size_t>(width) * sizeof(float));
        for (int64_t next = r + 1; next < end; ++next)
            for (int64_t c = 0; c < width; ++c) scratch[c] += from[next * width + c];
        for (int64_t c = 0; c < width; c += columns)
            for (int64_t j = 0; j < columns; ++j) sums[j] += scratch[c + j];
    }
}

// sums[column] += the elements of each column of a row-major matrix of which a tile holds elements first .. + count.
inline void add_columns(const float* from, int64_t first, int64_t count, int64_t width, float* scratch, double* sums) {
    int64_t at = 0;
    if (first % width == 0 && width < count) {
        // Narrow rows side by side, so that there is something to do at once.
        const int64_t together = width < 64 && count >= 64 ? 64 / width * width : width;
        add_rows(from, count / together, together, width, scratch, sums);
        at = count / together * together;
    }
    for (int64_t c = (first + at) % width; at < count; c = 0) {
        const int64_t left = width - c, run = left < count - at ? left : count - at;
        for (int64_t j = 0; j < run; ++j) sums[c + j] += from[at + j];
        at += run;
    }
}

// The sum of a row, by interleaved sums that are then added by halves: the same on every instruction set.
inline float sum_of_row(const float* row, int64_t width) {
    constexpr int kSums = 16;
    float sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums <= width; i += kSums)
        for (int j = 0; j < kSums; ++j) sums[j] += row[i + j];
    for (int j = 0; i + j < width; ++j) sums[j] += row[i + j];
    for (int step = kSums / 2; step; step /= 2)
        for (int j = 0; j < step; ++j) sums[j] += sums[j + step];
    return sums[0];
}

template <typename F>
inline void with_form(void* to, Form form, const F& f) {
    if (form == Form::float32) f(static_cast<float*>(to));
    if (form == Form::bfloat16) f(static_cast<bfloat16*>(to));
    if (form == Form::float16) f(static_cast<float16*>(to));
}

}  // namespace gqc::GQC_ISA
