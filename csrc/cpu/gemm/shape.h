// Sizes of a product and how it is cut.
#pragma once

#include <cstdint>

#include "cpu/gemm/dot.h"

namespace gqc::GQC_ISA {

constexpr int64_t kLeastProducts = 64 * 8192;  // a thread's least work, some microseconds

struct Shape {
    int64_t m, n, k;
};

// Columns j0 .. j0 + columns of right, which fill `vectors` vectors of sums.
struct Panel {
    int64_t columns;
    int vectors;

    Panel(int64_t n, int64_t j0)
        : columns(n - j0 < kColumns ? n - j0 : kColumns), vectors(static_cast<int>((columns + kLanes - 1) / kLanes)) {}
};

}  // namespace gqc::GQC_ISA
