// Operands of an integer matrix product in the order in which dot_tile reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/gemm/dot.h"

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

// Stores of bytes may alias anything, loop bounds too: hence __restrict here and values instead of references below.
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

// out[group][width][kGroup] = encoded elements k0 .. k0+k_count of columns j0 .. j0+j_count, with zeros in the last
// group after the last k. Columns from j_count to width are left as they are: nobody reads their sums.
template <typename T, T (*encode)(int8_t)>
void pack_panel(Operand x, int64_t k0, int64_t k_count, int64_t j0, int64_t j_count, int64_t width, T* __restrict out) {
    const int64_t whole = k_count / kGroup, rest = k_count % kGroup;
    T* last = out + whole * width * kGroup;
    if (rest) std::memset(last, 0, static_cast<size_t>(width * kGroup) * sizeof(T));
    if (x.k_contiguous) {
        for (int64_t j = 0; j < j_count; ++j) {
            const int8_t* column = x.values + (j0 + j) * x.stride + k0;
            for (int64_t g = 0; g < whole; ++g)
                encode_row<T, encode>(column + g * kGroup, kGroup, out + (g * width + j) * kGroup);
            encode_row<T, encode>(column + whole * kGroup, rest, last + j * kGroup);
        }
        return;
    }
    const int8_t* row = x.values + k0 * x.stride + j0;
    for (int64_t g = 0; g < whole; ++g)
        encode_group<T, encode>(row + g * kGroup * x.stride, x.stride, j_count, out + g * width * kGroup);
    for (int64_t i = 0; i < rest; ++i)
        for (int64_t j = 0; j < j_count; ++j) last[j * kGroup + i] = encode(row[(whole * kGroup + i) * x.stride + j]);
}

}  // namespace gqc::GQC_ISA
