// How the features of two operands broadcast to the features of the output of one node or edge.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Made by runtime/ops/feature_layout.py, which mirrors this struct. The output's features are `runs` runs of `length`
// elements; in run r, element i reads lhs[lhs_offsets[r] + i * lhs_step], with a step of 0 or 1, and rhs likewise. In a
// dot product, each run gives one element of the output.
struct FeatureLayout {
    int64_t runs, length;
    int64_t lhs_width, rhs_width;  // elements in a row of each operand
    int64_t lhs_step, rhs_step;
    const int64_t* lhs_offsets;
    const int64_t* rhs_offsets;

    int64_t width() const { return runs * length; }
    FeatureLayout swapped() const {
        return {runs, length, rhs_width, lhs_width, rhs_step, lhs_step, rhs_offsets, lhs_offsets};
    }
};

// Where one vector of the output's features stands, and its operands, in elements from the start of their rows.
struct Chunk {
    int64_t out, lhs, rhs;
};

// A layout cut into vectors of `lanes`. The last vector of a run is moved back so that it ends with the run; what it
// shares with the vector before it is computed twice.
class Chunks {
  public:
    __attribute__((noinline)) explicit Chunks(const FeatureLayout& layout)
        : lanes(lanes_for(layout.length)), count(layout.runs * ((layout.length + lanes - 1) / lanes)), chunks_(count) {
        if (!ok()) return;
        int64_t n = 0;
        for (int64_t r = 0; r < layout.runs; ++r) {
            for (int64_t i = 0; i < layout.length; i += lanes) {
                const int64_t at = i + lanes <= layout.length ? i : layout.length - lanes;
                chunks_[n++] = {r * layout.length + at, layout.lhs_offsets[r] + at * layout.lhs_step,
                                layout.rhs_offsets[r] + at * layout.rhs_step};
            }
        }
    }

    bool ok() const { return chunks_.ok(); }
    const Chunk* get() const { return chunks_.get(); }

    const int lanes;
    const int64_t count;

  private:
    Buffer<Chunk> chunks_;
};

}  // namespace gqc::GQC_ISA
