// Product of a left operand with many rows: threads share the rows, right is packed once and stays in cache.
#pragma once

#include <omp.h>

#include "cpu/gemm/division.h"
#include "cpu/gemm/left.h"
#include "cpu/gemm/row_block.h"

namespace gqc::GQC_ISA {

// left: rows of [m, k], of which each Rows::Worker gives int8 values block by block; needs k <= kExactProducts.
// Gives the largest magnitude of what is written, if the output asks for it.
template <typename Rows, typename Output>
Error gemm_by_rows(int64_t threads, Shape shape, const Division& division, const Rows& left, const Factor& right,
                   const Epilogue& epilogue, const Output& output, uint32_t* largest) {
    const auto [m, n, k] = shape;
    const Lines all(right.matrix, right.matrix.lines);
    if (!all.ok()) return kOutOfMemory;
    const PackedRight packed(shape, {all.read(0, right.matrix.lines), right.matrix.width, right.k_contiguous});
    if (!packed.ok()) return kOutOfMemory;

    uint32_t found = 0;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, m * n * k, kLeastProducts)) reduction(max : found) reduction(&& : ok)
    {
#pragma omp for schedule(static)
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) packed.pack(j0);
        typename Rows::Worker rows(left, division.block_rows);
        typename Output::Worker worker(output, division.block_rows);
        LeftBlock block(division.block_rows, k);
        Largest seen;
        ok = rows.ok() && worker.ok() && block.ok();
        const auto multiply = [&](int64_t i0, int64_t count) {
            block.load(rows.read(i0, count), count);
            multiply_block<Output::kCollects, Output::kFindsLargest>(block, packed, n, epilogue, i0, count,
                                                                     worker.values(), &seen);
            worker.complete(i0, count);
        };
#pragma omp for schedule(static)
        for (int64_t c = 0; c < division.chunks(); ++c) {
            if (ok) division.blocks_of(c, multiply);
        }
        found = seen.over_lanes();
    }
    if (Output::kFindsLargest) *largest = found;
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
