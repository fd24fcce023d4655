// Threads over the rows of a matrix, the longest of which are shared out in parts.
#pragma once

#include "common/kernel.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/long_rows.h"

namespace gqc::GQC_ISA {

// Entries of a row that one thread takes at a time.
constexpr int64_t kPart = 1024;

// Rows that a worker gets at once have at most so many entries together, or it gets one row.
constexpr int64_t kWindow = 256;

// Works on all rows. `Worker` is as for_long_rows() takes it, with
//   rows(first, last)               all of the rows first .. last, at most kWindow of them
// `work` is how many elementary steps an entry takes. Rows of a block of `block` that are no longer than kPart are
// worked on in their order by one worker.
template <typename Worker, typename Job, typename Index>
Error for_split_rows(int64_t threads, Rows<Index> rows, int64_t work, const Job& job, int64_t block = 1) {
    bool failed = false, has_long = false;
    const auto note = [](bool& what) { __atomic_store_n(&what, true, __ATOMIC_RELAXED); };
    // Not inlined: for_row_ranges calls it in two places.
    for_row_ranges(threads, rows, work, [&](int64_t first, int64_t last) __attribute__((noinline)) {
        if (first == last) return;  // behind the last row too, in whose block it would begin
        const int64_t end = last == rows.count ? last : last / block * block;
        Worker worker(job);
        if (!worker.ok()) return note(failed);
        for (int64_t v = first / block * block, next; v < end; v = next) {
            next = v + 1;
            if (rows.indptr[next] - rows.indptr[v] > kPart) {
                note(has_long);
                continue;
            }
            while (next < end && next - v < kWindow && rows.indptr[next + 1] - rows.indptr[v] <= kWindow) ++next;
            worker.rows(v, next);
        }
    });
    if (failed) return kOutOfMemory;
    return has_long ? for_long_rows<Worker>(threads, LongRows<Index>(rows, kPart), work, job) : nullptr;
}

}  // namespace gqc::GQC_ISA
