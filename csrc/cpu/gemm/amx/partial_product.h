// A thread's share of a product by contraction in AMX tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/amx/tiles.h"
#include "cpu/gemm/amx/transpose.h"
#include "cpu/gemm/groups.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

constexpr int64_t kChunk = 1024;  // contracted rows that are packed at a time, so that both operands stay in L2
constexpr int64_t kGroups = kStep / kGroup, kTile = kTileRows * kTileBytes;
constexpr int64_t kAhead = 64;  // contracted rows that are asked for before they are packed
static_assert(kChunk % kStep == 0 && kExactProducts % kChunk == 0);

// Packs chunks of both operands into tiles and keeps int32 sums of the whole output.
class PartialProduct {
  public:
    PartialProduct(Shape shape, const Factor& left, const Factor& right)
        : shape_(shape),
          left_groups_(left),
          right_groups_(right),
          m_packed_(round_up(shape.m, kTileRows)),
          n_packed_(round_up(shape.n, kLanes)),
          step_(m_packed_ * kStep),
          left_(m_packed_ * kChunk),
          right_(n_packed_ * kChunk),
          sums_(m_packed_ * n_packed_) {
        if (!ok()) return;
        step_.clear();
        left_.clear();
        right_.clear();
        sums_.clear();
    }

    bool ok() const {
        return left_groups_.ok() && right_groups_.ok() && step_.ok() && left_.ok() && right_.ok() && sums_.ok();
    }

    void add_chunk(int64_t k0, int64_t k_count) {
        const int64_t steps = round_up(k_count, kStep) / kStep;
        for (int64_t s = 0; s < steps; ++s) pack(k0, k_count, s);
        for (int64_t i0 = 0; i0 < m_packed_; i0 += 2 * kTileRows) {
            const TileWalk left{&left_[i0 * kChunk], kTileBytes, kTile, kTileRows * kChunk};
            for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
                const int vectors = Panel(shape_.n, j0).vectors;
                const int64_t stride = vectors * kTileBytes;
                for (int v = 0; v < vectors; v += 2) {
                    const TileWalk right{&right_[j0 * kChunk] + v * kTileBytes, stride, kTileRows * stride, kTileBytes};
                    add_tiles(i0 + kTileRows < m_packed_, v + 1 < vectors, left, right, steps,
                              &sums_[i0 * n_packed_ + j0 + v * kLanes], n_packed_);
                }
            }
        }
    }

    // Adds the sums to wide[m, n] and starts again from 0.
    void empty_into(int64_t* wide) {
        for (int64_t i = 0; i < shape_.m; ++i)
            for (int64_t j = 0; j < shape_.n; ++j)
                wide[i * shape_.n + j] += static_cast<int32_t>(sums_[i * n_packed_ + j]);
        sums_.clear();
    }

  private:
    // Contracted rows s * kStep .. (s + 1) * kStep of a chunk, group by group, with zeros behind the last.
    void pack(int64_t k0, int64_t k_count, int64_t s) {
        for (int64_t g = 0; g < kGroups; ++g) {
            const int64_t k = s * kStep + g * kGroup, rest = k_count - k;
            const int64_t count = rest < 0 ? 0 : rest < kGroup ? rest : kGroup;
            left_groups_.ask_for(k0 + k + kAhead, kGroup);
            right_groups_.ask_for(k0 + k + kAhead, kGroup);
            const Operand left = left_groups_.at(k0 + (count ? k : 0), count);
            pack_group<Left, encode_left>(left, 0, count, 0, shape_.m, &step_[g * m_packed_ * kGroup]);
            const Operand right = right_groups_.at(k0 + (count ? k : 0), count);
            for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
                const Panel panel(shape_.n, j0);
                pack_group<Right, encode_right>(right, 0, count, j0, panel.columns,
                                                &right_[j0 * kChunk + k * panel.vectors * kLanes]);
            }
        }
        for (int64_t i0 = 0; i0 < m_packed_; i0 += kTileRows)
            transpose_words(&step_[i0 * kGroup], m_packed_ * kGroup, &left_[i0 * kChunk + s * kTile]);
    }

    Tiles tiles_;
    Shape shape_;
    Groups left_groups_, right_groups_;
    int64_t m_packed_, n_packed_;
    Buffer<Left> step_;    // [kGroups][m_packed][kGroup]
    Buffer<Left> left_;    // tiles of 16 rows, those of a chunk one after the other
    Buffer<Right> right_;  // a chunk of all columns, a panel after the other
    Buffer<uint32_t> sums_;
};

}  // namespace gqc::GQC_ISA
