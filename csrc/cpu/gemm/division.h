// How the rows of a product are cut into blocks, and these into chunks that one thread computes.
#pragma once

#include <cstdint>

#include "cpu/gemm/block.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

// Nothing here depends on the number of threads, so what is added up chunk by chunk does not either.
struct Division {
    int64_t m, block_rows, chunk_rows;

    explicit Division(const Shape& shape) : m(shape.m), block_rows(rows_of_block(shape)) {
        const int64_t blocks = (m + block_rows - 1) / block_rows, each = (blocks + kMostChunks - 1) / kMostChunks;
        chunk_rows = (each < 1 ? 1 : each) * block_rows;
    }

    int64_t chunks() const { return (m + chunk_rows - 1) / chunk_rows; }

    // Calls f(first row, rows) for the blocks of a chunk.
    template <typename F>
    void blocks_of(int64_t chunk, const F& f) const {
        const int64_t end = (chunk + 1) * chunk_rows < m ? (chunk + 1) * chunk_rows : m;
        for (int64_t i0 = chunk * chunk_rows; i0 < end; i0 += block_rows)
            f(i0, end - i0 < block_rows ? end - i0 : block_rows);
    }

  private:
    static constexpr int64_t kMostChunks = 256, kElements = 4096, kLeastBlocks = 32;

    // The values of a block stay in L1 unless rows are long, and few rows are cut too, so that all threads get some.
    static int64_t rows_of_block(const Shape& shape) {
        const int64_t fit = kElements / (shape.n < 1 ? 1 : shape.n) / kBlockUnit * kBlockUnit;
        const int64_t rows = fit < kBlockRows ? kBlockRows : fit < 4 * kBlockRows ? fit : 4 * kBlockRows;
        const int64_t fair = round_up((shape.m + kLeastBlocks - 1) / kLeastBlocks, kBlockUnit);
        return fair < kBlockUnit ? kBlockUnit : fair < rows ? fair : rows;
    }
};

}  // namespace gqc::GQC_ISA
