// Products of a block of rows of the left operand with panels of the right one.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/packed_right.h"

namespace gqc::GQC_ISA {

// Rows of a block: whole register tiles, and whole blocks of random bits whatever the width of a row.
constexpr int64_t kBlockUnit = kRows % 8 == 0 ? kRows : kRows % 2 == 0 && kRows % 4 != 0 ? 4 * kRows : 2 * kRows;
constexpr int64_t kBlockRows = 48;
static_assert(kBlockUnit % kRows == 0 && kBlockUnit % 8 == 0 && kBlockRows % kBlockUnit == 0);

// One thread's block of left rows.
class LeftBlock {
  public:
    LeftBlock(int64_t block_rows, int64_t k)
        : k_(k), k_packed_(round_up(k, kGroup)), values_(block_rows * k_packed_), sums_(block_rows * kColumns) {
        if (values_.ok()) values_.clear();
    }

    bool ok() const { return values_.ok() && sums_.ok(); }

    void load(const int8_t* rows, int64_t count) {
        count_ = count;
        if (k_ == k_packed_) {  // the rows are one run, which vectorizes also where k is small
            encode_row<Left, encode_left>(rows, count * k_, values_.get());
        } else {
            for (int64_t r = 0; r < count; ++r)
                encode_row<Left, encode_left>(rows + r * k_, k_, &values_[r * k_packed_]);
        }
    }

    // Row r of the product with a panel is then at sums(r).
    void multiply(const PackedRight& right, int64_t j0, int vectors) const {
        const uint32_t* excess = right.excess(j0);
        for (int64_t r = 0; r < count_; r += kRows) {
            uint32_t* sums = &sums_[r * kColumns];
            for (int64_t i = 0; i < kRows; ++i)
                for (int j = 0; j < vectors * kLanes; ++j) sums[i * kColumns + j] = 0 - excess[j];
            dot_tile(vectors, {&values_[r * k_packed_], k_packed_, kGroup}, right.panel(j0), right.groups(), sums,
                     kColumns);
        }
    }

    const uint32_t* sums(int64_t r) const { return &sums_[r * kColumns]; }

  private:
    int64_t k_, k_packed_, count_ = 0;
    Buffer<Left> values_;
    Buffer<uint32_t> sums_;
};

}  // namespace gqc::GQC_ISA
