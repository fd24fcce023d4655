// Product of a left operand with many rows: threads share the rows, right is packed once and stays in cache.
#pragma once

#include <omp.h>

#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/left.h"
#include "cpu/gemm/output.h"
#if defined(__AMX_INT8__)
#    include "cpu/gemm/amx/block.h"
#else
#    include "cpu/gemm/block.h"
#endif

namespace gqc::GQC_ISA {

// Few rows are cut so that every thread gets some blocks.
inline int64_t rows_of_block(int64_t m, int64_t threads) {
    const int64_t fair = round_up((m + 4 * threads - 1) / (4 * threads), kBlockUnit);
    return fair < kBlockUnit ? kBlockUnit : fair < kBlockRows ? fair : kBlockRows;
}

template <int vectors, typename Worker>
inline void write_panel(const LeftBlock& block, const Epilogue& epilogue, int64_t i0, int64_t count, int64_t j0,
                        int64_t columns, Worker& worker) {
    for (int64_t r = 0; r < count; ++r) {
        Floats y[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            y[v] = __builtin_convertvector((Ints)load_sums(block.sums(r) + v * kLanes), Floats);
        epilogue.apply(y, i0 + r, j0);
        write_row(y, i0 + r, j0, columns, worker);
    }
}

// left: rows of [m, k], of which each Rows::Worker gives int8 values block by block; needs k <= kExactProducts.
// Gives the largest magnitude of what is written.
template <typename Rows, typename Output>
Error gemm_by_rows(int64_t threads, Shape shape, const Rows& left, const Factor& right, const Epilogue& epilogue,
                   const Output& output, uint32_t* largest) {
    const auto [m, n, k] = shape;
    const Lines all(right.matrix, right.matrix.lines);
    if (!all.ok()) return kOutOfMemory;
    const PackedRight packed(shape, {all.read(0, right.matrix.lines), right.matrix.width, right.k_contiguous});
    if (!packed.ok()) return kOutOfMemory;
    const int workers = team(threads, m * n * k, kLeastProducts);
    const int64_t block_rows = rows_of_block(m, workers);

    uint32_t peak = 0;
    bool ok = true;
#pragma omp parallel num_threads(workers) reduction(max : peak) reduction(&& : ok)
    {
#pragma omp for schedule(static)
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) packed.pack(j0);
        typename Rows::Worker rows(left, block_rows);
        typename Output::Worker worker(output, block_rows);
        LeftBlock block(block_rows, k);
        ok = rows.ok() && worker.ok() && block.ok();
#pragma omp for schedule(static)
        for (int64_t i0 = 0; i0 < m; i0 += block_rows) {
            if (!ok) continue;
            const int64_t count = m - i0 < block_rows ? m - i0 : block_rows;
            block.load(rows.read(i0, count), count);
            for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
                const Panel panel(n, j0);
                block.multiply(packed, j0, panel.vectors);
                with_vectors(panel.vectors, [&](auto vectors) {
                    write_panel<vectors>(block, epilogue, i0, count, j0, panel.columns, worker);
                });
            }
            worker.complete(i0, count);
        }
        peak = worker.largest();
    }
    *largest = peak;
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
