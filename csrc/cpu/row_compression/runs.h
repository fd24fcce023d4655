// Where the elements of compressed rows lie.
#pragma once

#include <cstdint>

#include "common/bits.h"
#include "common/kernel.h"

namespace gqc::GQC_ISA {

constexpr int64_t kPiece = 2048;  // elements at a time: what lies between memory and the packed bytes stays in L1
constexpr int64_t kPieceRuns = 256;

// A row's elements in groups of `group`, the last one as long as what is left. A run is a group of a row.
struct Runs {
    int64_t width, group, bits;

    int64_t of_row() const { return (width + group - 1) / group; }
    // Runs that have at most kPiece elements together, or one.
    int64_t of_piece() const {
        const int64_t fitting = kPiece / group;
        return fitting < 1 ? 1 : fitting < kPieceRuns ? fitting : kPieceRuns;
    }
};

// One run after another.
class Run {
  public:
    Run(const Runs& runs, int64_t run)
        : runs_(runs),
          bytes_(packed_bytes(runs.width, runs.bits)),
          row_(run / runs.of_row() * runs.width),
          row_byte_(run / runs.of_row() * bytes_),
          row_random_(run / runs.of_row() * (runs.width + runs.width % 2)),
          column_(run % runs.of_row() * runs.group) {}

    void next() {
        column_ += runs_.group;
        if (column_ < runs_.width) return;
        column_ = 0;
        row_ += runs_.width;
        row_byte_ += bytes_;
        row_random_ += runs_.width + runs_.width % 2;
    }

    int64_t first() const { return row_ + column_; }
    int64_t count() const { return runs_.width - column_ < runs_.group ? runs_.width - column_ : runs_.group; }
    // The number of the first element's random bits, which is even: a row of odd width leaves one out.
    int64_t random() const { return row_random_ + column_; }
    int64_t byte() const { return row_byte_ + column_ * runs_.bits / 8; }

  private:
    const Runs runs_;
    const int64_t bytes_;
    int64_t row_, row_byte_, row_random_, column_;
};

// Values of a byte.
inline int64_t of_byte(int64_t bits) {
    return 8 / bits;
}

}  // namespace gqc::GQC_ISA
