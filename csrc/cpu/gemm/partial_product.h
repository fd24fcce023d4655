// A thread's share of a product by contraction in vectors.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/groups.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

constexpr int64_t kChunk = 256;     // contracted rows that are packed at a time, so that a panel stays in L1
constexpr int64_t kLeftPanel = 48;  // left rows of a panel: whole register tiles and whole vectors
static_assert(kLeftPanel % kRows == 0 && kChunk % kGroup == 0 && kExactProducts % kChunk == 0);

// Packs chunks of both operands and keeps int32 sums of the whole output.
class PartialProduct {
  public:
    PartialProduct(Shape shape, const Factor& left, const Factor& right)
        : shape_(shape),
          left_groups_(left),
          right_groups_(right),
          m_packed_(round_up(shape.m, kLeftPanel)),
          n_packed_(round_up(shape.n, kLanes)),
          left_(m_packed_ * kChunk),
          right_(n_packed_ * kChunk),
          sums_(m_packed_ * n_packed_),
          excess_(n_packed_) {
        if (!ok()) return;
        left_.clear();
        right_.clear();
        sums_.clear();
        excess_.clear();
    }

    bool ok() const {
        return left_groups_.ok() && right_groups_.ok() && left_.ok() && right_.ok() && sums_.ok() && excess_.ok();
    }

    void add_chunk(int64_t k0, int64_t k_count) {
        pack(k0, k_count);
        const int64_t groups = round_up(k_count, kGroup) / kGroup;
        for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
            const int vectors = Panel(shape_.n, j0).vectors;
            const Right* columns = &right_[j0 * kChunk];
            add_excess(vectors, columns, groups, &excess_[j0]);
            for (int64_t i0 = 0; i0 < shape_.m; i0 += kRows) {
                const Left* rows = &left_[i0 / kLeftPanel * kLeftPanel * kChunk + i0 % kLeftPanel * kGroup];
                dot_tile(vectors, {rows, kGroup, kLeftPanel * kGroup}, columns, groups, &sums_[i0 * n_packed_ + j0],
                         n_packed_);
            }
        }
    }

    // Adds the sums to wide[m, n] and starts again from 0.
    void empty_into(int64_t* wide) {
        for (int64_t i = 0; i < shape_.m; ++i)
            for (int64_t j = 0; j < shape_.n; ++j)
                wide[i * shape_.n + j] += static_cast<int32_t>(sums_[i * n_packed_ + j] - excess_[j]);
        sums_.clear();
        excess_.clear();
    }

  private:
    // Group by group, so that wide rows are read as they lie in memory.
    void pack(int64_t k0, int64_t k_count) {
        for (int64_t k = 0; k < k_count; k += kGroup) {
            const int64_t count = k_count - k < kGroup ? k_count - k : kGroup;
            const Operand left = left_groups_.at(k0 + k, count), right = right_groups_.at(k0 + k, count);
            for (int64_t i0 = 0; i0 < shape_.m; i0 += kLeftPanel) {
                const int64_t rows = shape_.m - i0 < kLeftPanel ? shape_.m - i0 : kLeftPanel;
                pack_group<Left, encode_left>(left, 0, count, i0, rows, &left_[i0 * kChunk + k * kLeftPanel]);
            }
            for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
                const Panel panel(shape_.n, j0);
                pack_group<Right, encode_right>(right, 0, count, j0, panel.columns,
                                                &right_[j0 * kChunk + k * panel.vectors * kLanes]);
            }
        }
    }

    Shape shape_;
    Groups left_groups_, right_groups_;
    int64_t m_packed_, n_packed_;
    Buffer<Left> left_;    // a chunk of all rows, a panel after the other
    Buffer<Right> right_;  // a chunk of all columns, a panel after the other
    Buffer<uint32_t> sums_;
    Buffer<uint32_t> excess_;
};

}  // namespace gqc::GQC_ISA
