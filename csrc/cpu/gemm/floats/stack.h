// Right operands of float products, packed panel by panel in the order in which they are read.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

// One matrix a type, with zeros behind the last column.
class FloatStack {
  public:
    // b: [types, k, n] with the given distances between elements.
    struct Strides {
        int64_t type, k, n;
    };
    FloatStack(int64_t types, Shape shape, const float* b, Strides strides)
        : size_(round_up(shape.n, kLanes) * shape.k), values_(types * size_), k_(shape.k) {
        if (!values_.ok()) return;
        values_.clear();
        for (int64_t t = 0; t < types; ++t) {
            for (int64_t j0 = 0; j0 < shape.n; j0 += kColumns) {
                const Panel panel(shape.n, j0);
                float* to = &values_[t * size_ + j0 * shape.k];
                for (int64_t k = 0; k < shape.k; ++k, to += panel.vectors * kLanes)
                    for (int64_t j = 0; j < panel.columns; ++j)
                        to[j] = b[t * strides.type + k * strides.k + (j0 + j) * strides.n];
            }
        }
    }

    // One matrix, [k, n], or [n, k] where it is transposed.
    FloatStack(Shape shape, const float* b, bool transposed)
        : FloatStack(1, shape, b, {0, transposed ? 1 : shape.n, transposed ? shape.k : 1}) {}

    bool ok() const { return values_.ok(); }
    const float* panel(int64_t type, int64_t j0) const { return &values_[type * size_ + j0 * k_]; }

  private:
    int64_t size_;
    Buffer<float> values_;
    int64_t k_;
};

}  // namespace gqc::GQC_ISA
