// Operands of an integer matrix product in the order in which dot_tile reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/dot.h"

namespace gqc::GQC_ISA {

inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// An int8 matrix seen as [k, j]: the contracted index and a row of left or a column of right.
struct Operand {
    const int8_t* values;
    int64_t stride;     // elements between neighbours along the index that is not contiguous
    bool k_contiguous;  // (k, j) is values[j * stride + k], else values[k * stride + j]
};

// out[group][width][kGroup] = encoded elements k0 .. k0+k_count of columns j0 .. j0+j_count, 0 bytes beyond them;
// column_sums[j] += the column's sum over these k, where column_sums is given.
// Stores of bytes may alias anything, also the loop bounds: hence __restrict and values instead of references.
template <typename T, T (*encode)(int8_t)>
inline void encode_row(const int8_t* __restrict from, int64_t count, T* __restrict out) {
    for (int64_t i = 0; i < count; ++i) out[i] = encode(from[i]);
}

// out[j][i] = encoded row i, element j: kGroup rows of neighbouring k side by side.
template <typename T, T (*encode)(int8_t)>
inline void encode_group(const int8_t* __restrict rows, int64_t stride, int64_t count, T* __restrict out) {
    for (int64_t j = 0; j < count; ++j)
        for (int i = 0; i < kGroup; ++i) out[j * kGroup + i] = encode(rows[i * stride + j]);
}

// out[group][width][kGroup] = encoded elements k0 .. k0+k_count of columns j0 .. j0+j_count, 0 bytes beyond them;
// column_sums[j] += the column's sum over these k, where column_sums is given.
template <typename T, T (*encode)(int8_t)>
void pack_panel(Operand x, int64_t k0, int64_t k_count, int64_t j0, int64_t j_count, int64_t width, T* __restrict out,
                int32_t* __restrict column_sums) {
    const int64_t groups = round_up(k_count, kGroup) / kGroup, whole = k_count / kGroup;
    if (groups > whole || width > j_count)
        std::memset(out, 0, static_cast<size_t>(groups * width * kGroup) * sizeof(T));
    if (x.k_contiguous) {
        for (int64_t j = 0; j < j_count; ++j) {
            const int8_t* column = x.values + (j0 + j) * x.stride + k0;
            for (int64_t k = 0; k < k_count; ++k)
                out[(k / kGroup * width + j) * kGroup + k % kGroup] = encode(column[k]);
            if (column_sums)
                for (int64_t k = 0; k < k_count; ++k) column_sums[j] += column[k];
        }
        return;
    }
    const int8_t* row = x.values + k0 * x.stride + j0;
    for (int64_t g = 0; g < whole; ++g)
        encode_group<T, encode>(row + g * kGroup * x.stride, x.stride, j_count, out + g * width * kGroup);
    for (int64_t k = whole * kGroup; k < k_count; ++k)
        for (int64_t j = 0; j < j_count; ++j)
            out[(whole * width + j) * kGroup + k % kGroup] = encode(row[k * x.stride + j]);
    if (column_sums)
        for (int64_t k = 0; k < k_count; ++k)
            for (int64_t j = 0; j < j_count; ++j) column_sums[j] += row[k * x.stride + j];
}

}  // namespace gqc::GQC_ISA
