// How the heads of a row of floats are cut into vectors.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Units of `lanes` floats, none with values of two heads. The last one of a head is moved back so that it ends with the
// head; what it shares with the one before it is computed twice.
class HeadUnits {
  public:
    HeadUnits(int64_t heads, int64_t width)
        : heads(heads),
          width(width),
          lanes(lanes_for(width)),
          of_a_head((width + lanes - 1) / lanes),
          count(heads * of_a_head) {}

    // The first feature of a unit.
    int64_t first(int64_t unit) const {
        const int64_t h = unit / of_a_head, end = (unit % of_a_head + 1) * lanes;
        return h * width + (end <= width ? end : width) - lanes;
    }

    // How many of a unit's first lanes the one before it has too.
    int64_t shared(int64_t unit) const {
        const int64_t end = (unit % of_a_head + 1) * lanes;
        return end <= width ? 0 : end - width;
    }

    // Floats that all units take side by side.
    int64_t size() const { return count * lanes; }

    const int64_t heads, width;
    const int lanes;
    const int64_t of_a_head, count;
};

}  // namespace gqc::GQC_ISA
