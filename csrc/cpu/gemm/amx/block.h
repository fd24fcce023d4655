// A block of left rows times panels of the right operand in AMX tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/amx/tiles.h"
#include "cpu/gemm/packed_right.h"

namespace gqc::GQC_ISA {

constexpr int64_t kBlockUnit = kTileRows;
constexpr int64_t kBlockRows = kTileRows;
constexpr int64_t kStripRows = kTileRows;  // rows that are multiplied at a time

// to[i] = from[i] for i < count, a few bytes more at a time than a call of memcpy pays for.
inline void copy_row(const int8_t* from, int64_t count, int8_t* to) {
    int64_t i = 0;
    for (; i + 64 <= count; i += 64) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
    const __mmask64 rest = (1ull << (count - i)) - 1;
    _mm512_mask_storeu_epi8(to + i, rest, _mm512_maskz_loadu_epi8(rest, from + i));
}

// One thread's block. Tiles are read where the rows lie if they hold whole tiles, else from a copy.
class LeftBlock {
  public:
    LeftBlock(int64_t block_rows, int64_t k)
        : k_(k), k_packed_(round_up(k, kStep)), copy_(round_up(block_rows, kTileRows) * k_packed_) {
        if (copy_.ok()) copy_.clear();
    }

    bool ok() const { return copy_.ok(); }

    void load(const int8_t* rows, int64_t count) {
        rows_ = copy_.get();
        if (k_ == k_packed_ && count % kTileRows == 0) {
            rows_ = rows;
        } else {
            for (int64_t r = 0; r < count; ++r) copy_row(rows + r * k_, k_, &copy_[r * k_packed_]);
        }
    }

    // Row i of sums = the product of row r + i with a panel, for the rows of a strip that there are.
    template <int vectors>
    void multiply(const PackedRight& right, int64_t j0, int64_t r, int64_t, uint32_t* sums, int64_t sums_stride) const {
        constexpr int64_t kStride = vectors * kTileBytes;
        const TileWalk left{rows_ + r * k_packed_, k_packed_, kTileBytes, 0};
        const TileWalk columns{right.panel(j0), kStride, kTileRows * kStride, kTileBytes};
        multiply_row_of_tiles<vectors>(left, columns, k_packed_ / kStep, sums, sums_stride);
    }

  private:
    Tiles tiles_;
    int64_t k_, k_packed_;
    const int8_t* rows_ = nullptr;
    Buffer<int8_t> copy_;
};

}  // namespace gqc::GQC_ISA
