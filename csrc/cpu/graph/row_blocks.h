// Threads over blocks of consecutive rows of a matrix, whose results stand one behind the other.
#pragma once

#include "common/kernel.h"
#include "cpu/graph/rows.h"

namespace gqc::GQC_ISA {

// The rows of a matrix whose results have `width` floats, cut into parts of about the same number of rows and entries
// together, and these into blocks that fit the nearest cache. Both start at multiples of 8 rows and depend on the
// matrix alone, never on the number of threads.
template <typename Index>
struct RowBlocks {
    const Rows<Index> rows;
    const int64_t width, block, parts;

    RowBlocks(Rows<Index> rows, int64_t width)
        : rows(rows), width(width), block(rows_of_a_block()), parts(number_of_parts()) {}

    int64_t count() const { return rows.count; }
    int64_t work() const { return (rows.entries() + rows.count) * width; }
    int64_t first(int64_t part) const {
        return part == parts ? rows.count : first_row(rows, part, parts) / block * block;
    }

  private:
    static constexpr int64_t kFloats = 4096, kMostRows = 256, kLeastRows = 8, kMostParts = 256, kLeastWork = 32768;

    static int64_t multiple(int64_t n, int64_t of) { return n / of * of; }

    // Rows of 32 times any width are whole cache lines of every type.
    int64_t rows_of_a_block() const {
        const int64_t fitting = kFloats / width, shared = rows.count / 64;
        int64_t most = fitting < shared ? fitting : shared;
        if (most > kMostRows) most = kMostRows;
        return most >= 32 ? multiple(most, 32) : most >= kLeastRows ? multiple(most, kLeastRows) : kLeastRows;
    }

    int64_t number_of_parts() const {
        const int64_t useful = work() / kLeastWork + 1, blocks = (rows.count + block - 1) / block;
        const int64_t most = useful < blocks ? useful : blocks;
        return most < kMostParts ? most : kMostParts;
    }
};

// Blocks of any kind, known to their users by an address: they are compiled once for all kinds.
class BlocksOfRows {
  public:
    template <typename Of>
    explicit BlocksOfRows(const Of& of)
        : count(of.count()),
          work(of.work()),
          block(of.block),
          parts(of.parts),
          of_(&of),
          first_([](const void* of, int64_t part) { return static_cast<const Of*>(of)->first(part); }) {}

    // The first row of a part.
    int64_t first(int64_t part) const { return first_(of_, part); }

    const int64_t count, work, block, parts;

  private:
    const void* const of_;
    int64_t (*const first_)(const void*, int64_t);
};

// Gives all blocks to workers, of which each thread has one:
//   Worker(job), ok()
//   block(first, last, part)    rows first .. last
//   end()                       no more blocks come; several threads call it at once
template <typename Worker, typename Job>
Error for_row_blocks(int64_t threads, const BlocksOfRows& blocks, const Job& job) {
    Error error = nullptr;
#pragma omp parallel num_threads(team(threads, blocks.work))
    {
        Worker worker(job);
        if (!worker.ok()) __atomic_store_n(&error, kOutOfMemory, __ATOMIC_RELAXED);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < blocks.parts; ++part) {
            const int64_t end = blocks.first(part + 1);
            for (int64_t v = blocks.first(part); worker.ok() && v < end; v += blocks.block)
                worker.block(v, v + blocks.block < end ? v + blocks.block : end, part);
        }
        if (worker.ok()) worker.end();
    }
    return error;
}

}  // namespace gqc::GQC_ISA
