// Product with a small output and a long contraction, as gradients of weights are: threads share the contraction.
#pragma once

#include <omp.h>

#include "cpu/gemm/division.h"
#include "cpu/gemm/values.h"
#if defined(__AMX_INT8__)
#    include "cpu/gemm/amx/partial_product.h"
#else
#    include "cpu/gemm/partial_product.h"
#endif

namespace gqc::GQC_ISA {

// In int8 as a whole, if its lines run along k: a group of contracted rows is then no run of bytes.
inline Factor unpacked_if_along_k(const Factor& x, const Lines& all) {
    const Matrix& matrix = x.matrix;
    if (!x.k_contiguous || !matrix.packed) return x;
    return {{all.read(0, matrix.lines), matrix.lines, matrix.width, false}, true};
}

// wide[m, n] = left . right.
inline Error contract(int64_t threads, Shape shape, const Factor& left, const Factor& right, int64_t* wide) {
    const auto [m, n, k] = shape;
    const Lines all_left(left.matrix, left.k_contiguous ? left.matrix.lines : 0);
    const Lines all_right(right.matrix, right.k_contiguous ? right.matrix.lines : 0);
    if (!all_left.ok() || !all_right.ok()) return kOutOfMemory;
    const Factor left_read = unpacked_if_along_k(left, all_left), right_read = unpacked_if_along_k(right, all_right);
    std::memset(wide, 0, static_cast<size_t>(m * n) * sizeof *wide);
    const int64_t chunks = round_up(k, kChunk) / kChunk;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, m * n * k, kLeastProducts)) reduction(&& : ok)
    {
        PartialProduct part(shape, left_read, right_read);
        ok = part.ok();
        const int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
        const int64_t first = chunks * share / shares, last = chunks * (share + 1) / shares;
        for (int64_t c = first; c < last && ok; ++c) {
            const int64_t k0 = c * kChunk;
            part.add_chunk(k0, k - k0 < kChunk ? k - k0 : kChunk);
            if ((c - first + 1) % (kExactProducts / kChunk) == 0 || c + 1 == last) {
#pragma omp critical(gqc_wide_sums)
                part.empty_into(wide);
            }
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

// Writes the values of exact sums [m, n]. Gives the largest magnitude of what is written, if the output asks for it.
template <typename Output>
Error write_sums(Shape shape, const Division& division, const int64_t* wide, const Epilogue& epilogue,
                 const Output& output, uint32_t* largest) {
    const int64_t n = shape.n;
    typename Output::Worker worker(output, division.block_rows);
    if (!worker.ok()) return kOutOfMemory;
    Largest seen;
    const auto write_block = [&](int64_t i0, int64_t count) {
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
            const Panel panel(n, j0);
            with_vectors(panel.vectors, [&](auto vectors) {
                finish_panel<Output::kCollects, Output::kFindsLargest, vectors>(
                    {i0, count, j0, panel.columns}, epilogue, n, worker.values() + j0, &seen, [&](int64_t r, int v) {
                        const int64_t j = v * kLanes, rest = panel.columns - j < kLanes ? panel.columns - j : kLanes;
                        const int64_t* sums = wide + (i0 + r) * n + j0 + j;
                        float values[kLanes] = {};
                        for (int64_t lane = 0; lane < rest; ++lane) values[lane] = static_cast<float>(sums[lane]);
                        return load_floats(values);
                    });
            });
        }
        worker.complete(i0, count);
    };
    for (int64_t c = 0; c < division.chunks(); ++c) division.blocks_of(c, write_block);
    if (Output::kFindsLargest) *largest = seen.over_lanes();
    return nullptr;
}

}  // namespace gqc::GQC_ISA
