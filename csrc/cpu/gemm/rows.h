// Product of a left operand with many rows: threads share the rows, right is packed once and stays in cache.
#pragma once

#include <omp.h>

#include "common/buffer.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

// left: [m, k]; needs k <= kExactProducts.
template <typename Out>
Error gemm_by_rows(int64_t threads, Shape shape, const Matrix& left, const Factor& right,
                   const Epilogue<Out>& epilogue) {
    const auto [m, n, k] = shape;
    const Lines all(right.matrix, right.matrix.lines);
    if (!all.ok()) return kOutOfMemory;
    const Operand columns_of_right{all.read(0, right.matrix.lines), right.matrix.width, right.k_contiguous};
    const int64_t n_packed = round_up(n, kLanes), k_packed = round_up(k, kGroup);
    const int workers = team(threads, m * n * k, kLeastProducts);
    const Buffer<Right> packed(n_packed * k_packed);
    const Buffer<uint32_t> excess(n_packed);
    const Buffer<Left> left_rows(workers * kRows * k_packed);
    if (!packed.ok() || !excess.ok() || !left_rows.ok()) return kOutOfMemory;
    excess.clear();
    left_rows.clear();

    uint32_t largest = 0;
#pragma omp parallel num_threads(workers) reduction(max : largest)
    {
#pragma omp for schedule(static)
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
            const Panel panel(n, j0);
            Right* columns = &packed[j0 * k_packed];
            for (int64_t k0 = 0; k0 < k; k0 += kGroup)
                pack_group<Right, encode_right>(columns_of_right, k0, k - k0 < kGroup ? k - k0 : kGroup, j0,
                                                panel.columns, columns + k0 * panel.vectors * kLanes);
            add_excess(panel.vectors, columns, k_packed / kGroup, &excess[j0]);
        }
        Left* rows = &left_rows[omp_get_thread_num() * kRows * k_packed];
        alignas(64) uint32_t sums[kRows][kColumns];
        Peaks peaks;
#pragma omp for schedule(static)
        for (int64_t i0 = 0; i0 < m; i0 += kRows) {
            const int64_t count = m - i0 < kRows ? m - i0 : kRows;
            if (k == k_packed && !left.packed) {  // the rows are one run, which vectorizes also where k is small
                encode_row<Left, encode_left>(left.line(i0), count * k, rows);
            } else {
                for (int64_t r = 0; r < count; ++r) encode_line<Left, encode_left>(left, i0 + r, rows + r * k_packed);
            }
            for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
                const Panel panel(n, j0);
                for (auto& row : sums)
                    for (int j = 0; j < panel.vectors * kLanes; ++j) row[j] = 0 - excess[j0 + j];
                dot_tile(panel.vectors, {rows, k_packed, kGroup}, &packed[j0 * k_packed], k_packed / kGroup, sums[0],
                         kColumns);
                for (int64_t r = 0; r < count; ++r)
                    epilogue.write(reinterpret_cast<const int32_t*>(sums[r]), i0 + r, j0, panel.columns, peaks);
            }
        }
        largest = peaks.largest();
    }
    epilogue.finish(largest);
    return nullptr;
}

}  // namespace gqc::GQC_ISA
