// A block of left rows times panels of the right operand in AMX tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/amx/tiles.h"
#include "cpu/gemm/packed_right.h"

namespace gqc::GQC_ISA {

constexpr int64_t kBlockUnit = kTileRows;
constexpr int64_t kBlockRows = 64;

// One thread's block. Tiles are read where the rows lie if they hold whole tiles, else from a copy.
class LeftBlock {
  public:
    LeftBlock(int64_t block_rows, int64_t k)
        : k_(k), k_packed_(round_up(k, kStep)), copy_(block_rows * k_packed_), sums_(block_rows * kColumns) {
        if (copy_.ok()) copy_.clear();
    }

    bool ok() const { return copy_.ok() && sums_.ok(); }

    void load(const int8_t* rows, int64_t count) {
        count_ = count;
        rows_ = copy_.get();
        if (k_ == k_packed_ && count % kTileRows == 0) {
            rows_ = rows;
        } else {
            for (int64_t r = 0; r < count; ++r)
                std::memcpy(&copy_[r * k_packed_], rows + r * k_, static_cast<size_t>(k_));
        }
    }

    // Row r of the product with a panel is then at sums(r).
    void multiply(const PackedRight& right, int64_t j0, int vectors) const {
        const int64_t stride = vectors * kTileBytes;
        for (int64_t r = 0; r < count_; r += 2 * kTileRows) {
            const TileWalk left{rows_ + r * k_packed_, k_packed_, kTileBytes, kTileRows * k_packed_};
            for (int v = 0; v < vectors; v += 2) {
                const TileWalk columns{right.panel(j0) + v * kTileBytes, stride, kTileRows * stride, kTileBytes};
                multiply_tiles<false>(r + kTileRows < count_, v + 1 < vectors, left, columns, k_packed_ / kStep,
                                      &sums_[r * kColumns + v * kLanes], kColumns);
            }
        }
    }

    const uint32_t* sums(int64_t r) const { return &sums_[r * kColumns]; }

  private:
    Tiles tiles_;
    int64_t k_, k_packed_, count_ = 0;
    const int8_t* rows_ = nullptr;
    Buffer<int8_t> copy_;
    Buffer<uint32_t> sums_;
};

}  // namespace gqc::GQC_ISA
