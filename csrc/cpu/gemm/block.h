// Products of a block of rows of the left operand with panels of the right one.
#pragma once

#if defined(__AMX_INT8__)
#    include "cpu/gemm/amx/block.h"
#else

#    include <cstdint>
#    include <cstring>
#    include <numeric>

#    include "common/buffer.h"
#    include "common/philox.h"
#    include "cpu/gemm/packed_right.h"

namespace gqc::GQC_ISA {

// Rows of a block: whole register tiles, and whole blocks of random bits whatever the width of a row.
constexpr int64_t kBlockUnit = std::lcm(kRows, kBlockBytes);
constexpr int64_t kBlockRows = 48;
static_assert(kBlockRows % kBlockUnit == 0);

constexpr int64_t kStripRows = kRows;  // rows that are multiplied at a time

// One thread's block of left rows.
class LeftBlock {
  public:
    LeftBlock(int64_t block_rows, int64_t k) : k_(k), k_packed_(round_up(k, kGroup)), values_(block_rows * k_packed_) {
        if (values_.ok()) values_.clear();
    }

    bool ok() const { return values_.ok(); }

    void load(const int8_t* rows, int64_t count) {
        if (k_ == k_packed_) {  // the rows are one run, which vectorizes also where k is small
            encode_row<Left, encode_left>(rows, count * k_, values_.get());
        } else {
            for (int64_t r = 0; r < count; ++r)
                encode_row<Left, encode_left>(rows + r * k_, k_, &values_[r * k_packed_]);
        }
    }

    // Row i of sums = the product of row r + i with a panel, for the rows of a strip that there are.
    template <int vectors>
    void multiply(const PackedRight& right, int64_t j0, int64_t r, int64_t, uint32_t* sums, int64_t sums_stride) const {
        const uint32_t* excess = right.excess(j0);
        for (int64_t i = 0; i < kRows; ++i)
            for (int v = 0; v < vectors; ++v) {
                const Sums start = Sums{} - load_sums(excess + v * kLanes);
                std::memcpy(sums + i * sums_stride + v * kLanes, &start, sizeof start);
            }
        dot_tile<vectors>({&values_[r * k_packed_], k_packed_, kGroup}, right.panel(j0), right.groups(), sums,
                          sums_stride);
    }

  private:
    int64_t k_, k_packed_;
    Buffer<Left> values_;
};

}  // namespace gqc::GQC_ISA

#endif
