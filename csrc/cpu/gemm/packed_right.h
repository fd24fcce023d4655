// The right operand of a product by rows, packed panel by panel in the order in which it is read.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

// With zeros behind the last contracted index, up to a multiple of kStep.
class PackedRight {
  public:
    PackedRight(Shape shape, const Operand& right)
        : shape_(shape),
          right_(right),
          k_packed_(round_up(shape.k, kStep)),
          values_(round_up(shape.n, kLanes) * k_packed_),
          excess_(round_up(shape.n, kLanes)) {
        if (!ok()) return;
        excess_.clear();
        if (kStep != kGroup) values_.clear();
    }

    bool ok() const { return values_.ok() && excess_.ok(); }

    void pack(int64_t j0) const {
        const Panel panel(shape_.n, j0);
        Right* columns = &values_[j0 * k_packed_];
        for (int64_t k = 0; k < shape_.k; k += kGroup)
            pack_group<Right, encode_right>(right_, k, shape_.k - k < kGroup ? shape_.k - k : kGroup, j0, panel.columns,
                                            columns + k * panel.vectors * kLanes);
        add_excess(panel.vectors, columns, k_packed_ / kGroup, &excess_[j0]);
    }

    const Right* panel(int64_t j0) const { return &values_[j0 * k_packed_]; }
    const uint32_t* excess(int64_t j0) const { return &excess_[j0]; }
    int64_t groups() const { return k_packed_ / kGroup; }

  private:
    Shape shape_;
    Operand right_;
    int64_t k_packed_;
    Buffer<Right> values_;
    Buffer<uint32_t> excess_;
};

}  // namespace gqc::GQC_ISA
