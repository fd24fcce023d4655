// What computes rows of floats, known to its users by an address: they are compiled once for all of it.
#pragma once

#include "cpu/graph/row_blocks.h"

namespace gqc::GQC_ISA {

class RowSums {
  public:
    // sums(first, last, to) writes rows first .. last, one behind the other.
    template <typename Sums>
    explicit RowSums(const Sums& sums)
        : sums_(&sums), call_([](const void* sums, int64_t first, int64_t last, float* to) {
              (*static_cast<const Sums*>(sums))(first, last, to);
          }) {}

    void operator()(int64_t first, int64_t last, float* to) const { call_(sums_, first, last, to); }

  private:
    const void* const sums_;
    void (*const call_)(const void*, int64_t, int64_t, float*);
};

// What is done with sums, known by an address likewise: use(sums, the blocks of their rows).
class UseOfSums {
  public:
    template <typename Use>
    explicit UseOfSums(const Use& use)
        : use_(&use), call_([](const void* use, const RowSums& sums, const BlocksOfRows& blocks) {
              return (*static_cast<const Use*>(use))(sums, blocks);
          }) {}

    Error operator()(const RowSums& sums, const BlocksOfRows& blocks) const { return call_(use_, sums, blocks); }

  private:
    const void* const use_;
    Error (*const call_)(const void*, const RowSums&, const BlocksOfRows&);
};

}  // namespace gqc::GQC_ISA
