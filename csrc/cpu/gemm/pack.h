// Operands of an integer matrix product in the order in which dot_tile reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "common/int4.h"
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

// A matrix as it lies in memory, in lines of `width` int8 or packed 4-bit values.
struct Matrix {
    const void* values;
    int64_t lines, width;
    bool packed;

    const uint8_t* packed_line(int64_t line) const {
        return static_cast<const uint8_t*>(values) + line * int4_bytes(width);
    }
    const int8_t* line(int64_t line) const { return static_cast<const int8_t*>(values) + line * width; }
};

// An operand of a product: a matrix, and whether its lines run along the contracted index.
struct Factor {
    Matrix matrix;
    bool k_contiguous;
};

// Lines of a matrix in int8: where they lie, or at most `most` of them unpacked.
class Lines {
  public:
    Lines(const Matrix& matrix, int64_t most) : matrix_(matrix), unpacked_(matrix.packed ? most * matrix.width : 0) {}

    bool ok() const { return unpacked_.ok(); }

    // `count` lines from `first` on, until the next call.
    const int8_t* read(int64_t first, int64_t count) const {
        if (!matrix_.packed) return matrix_.line(first);
        for (int64_t i = 0; i < count; ++i)
            unpack_int4<int8_t, as_int8>(matrix_.packed_line(first + i), matrix_.width, &unpacked_[i * matrix_.width]);
        return unpacked_.get();
    }

  private:
    Matrix matrix_;
    Buffer<int8_t> unpacked_;
};

// Stores of bytes may alias anything, loop bounds too: hence __restrict here and values instead of references below.
template <typename T, T (*encode)(int8_t)>
inline void encode_row(const int8_t* __restrict from, int64_t count, T* __restrict out) {
    for (int64_t i = 0; i < count; ++i) out[i] = encode(from[i]);
}

template <typename T, T (*encode)(int8_t)>
inline void encode_line(const Matrix& x, int64_t line, T* out) {
    if (x.packed)
        unpack_int4<T, encode>(x.packed_line(line), x.width, out);
    else
        encode_row<T, encode>(x.line(line), x.width, out);
}

// out[j][i] = encoded (k + i, j0 + j) for j < j_count and i < kGroup, with zeros from i = k_count on.
template <typename T, T (*encode)(int8_t)>
inline void pack_group(Operand x, int64_t k, int64_t k_count, int64_t j0, int64_t j_count, T* __restrict out) {
    const int64_t stride = x.stride;
    const int8_t* __restrict from = x.values + (x.k_contiguous ? j0 * stride + k : k * stride + j0);
    const int64_t k_step = x.k_contiguous ? 1 : stride, j_step = x.k_contiguous ? stride : 1;
    if (k_count < kGroup) {
        std::memset(out, 0, static_cast<size_t>(j_count * kGroup) * sizeof(T));
        for (int64_t j = 0; j < j_count; ++j)
            for (int64_t i = 0; i < k_count; ++i) out[j * kGroup + i] = encode(from[i * k_step + j * j_step]);
    } else if (x.k_contiguous) {
        for (int64_t j = 0; j < j_count; ++j)
            for (int i = 0; i < kGroup; ++i) out[j * kGroup + i] = encode(from[j * stride + i]);
    } else {
        for (int64_t j = 0; j < j_count; ++j)
            for (int i = 0; i < kGroup; ++i) out[j * kGroup + i] = encode(from[i * stride + j]);
    }
}

}  // namespace gqc::GQC_ISA
