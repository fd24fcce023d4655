// Writes rows of floats to a tensor.
#pragma once

#include "cpu/graph/row_blocks.h"
#include "cpu/graph/row_sums.h"

namespace gqc::GQC_ISA {

// Rows of elements of a dtype. The sums of row v are rounded to it; where there are factors, they are multiplied with
// factors[v], or divided by it, and rounded again, as if by an op of its own.
struct RowOutput {
    void* out;
    int64_t dtype;
    const float* factors;  // or null
    int64_t divide;
};

// Writes all rows of blocks, each of `width` elements; *largest gets the magnitude() of the largest element.
Error write_rows(int64_t threads, const BlocksOfRows& blocks, int64_t width, const RowSums& sums,
                 const RowOutput& output, float* largest);

}  // namespace gqc::GQC_ISA
