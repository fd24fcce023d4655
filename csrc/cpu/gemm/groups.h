// A factor of a product by contraction, read along the contracted index.
#pragma once

#include <cstdint>

#include "cpu/gemm/pack.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

// A factor, group of kGroup contracted rows by group. Where its lines run along k it is int8.
class Groups {
  public:
    explicit Groups(const Factor& x) : x_(x), lines_(x.matrix, x.k_contiguous ? 0 : kGroup) {}

    bool ok() const { return lines_.ok(); }

    // Rows k .. k + count as an operand that starts at row 0.
    Operand at(int64_t k, int64_t count) const {
        if (x_.k_contiguous) return {x_.matrix.line(0) + k, x_.matrix.width, true};
        return {lines_.read(k, count), x_.matrix.width, false};
    }

    // Asks for rows k .. k + count if they lie side by side, even where some are behind the end.
    void ask_for(int64_t k, int64_t count) const {
        if (!x_.k_contiguous && !x_.matrix.packed) prefetch(x_.matrix.line(k), count * x_.matrix.width);
    }

  private:
    Factor x_;
    Lines lines_;
};

}  // namespace gqc::GQC_ISA
