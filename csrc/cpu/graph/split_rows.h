// Threads over the rows of a matrix, the longest of which are shared out in parts.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/rows.h"

namespace gqc::GQC_ISA {

// Entries of a row that one thread takes at a time. Where a row is cut depends on nothing else, so its sums do not
// depend on the number of threads.
constexpr int64_t kPart = 1024;

// Rows that a worker gets at once have at most so many entries together, or it gets one row.
constexpr int64_t kWindow = 256;

// Works on all rows. `Worker` is the scratch memory of a thread:
//   Worker(job), ok()
//   rows(first, last)               all of the rows first .. last, at most kWindow of them
//   part(v, begin, end, partial)    entries begin .. end of a longer row, into job.partial_size() floats
//   join(v, partials, parts)        what the parts of a row make together
// `work` is how many elementary steps an entry takes. Rows of a block of `block` that are no longer ones are worked on
// in their order by one worker.
template <typename Worker, typename Job, typename Index>
Error for_split_rows(int64_t threads, Rows<Index> rows, int64_t work, const Job& job, int64_t block = 1) {
    struct Long {
        int64_t row, first_slot;
    };
    const int64_t most = rows.entries() / kPart;
    const Buffer<Long> long_rows(most + 1);
    if (!long_rows.ok()) return kOutOfMemory;
    int64_t count = 0;
    Error error = nullptr;
    const auto fail = [&] { __atomic_store_n(&error, kOutOfMemory, __ATOMIC_RELAXED); };
    for_row_ranges(threads, rows, work, [&](int64_t first, int64_t last) {
        if (first == last) return;  // behind the last row too, in whose block it would begin
        const int64_t end = last == rows.count ? last : last / block * block;
        Worker worker(job);
        if (!worker.ok()) return fail();
        for (int64_t v = first / block * block, next; v < end; v = next) {
            next = v + 1;
            if (rows.indptr[next] - rows.indptr[v] > kPart) {
                long_rows[__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED)].row = v;
                continue;
            }
            while (next < end && next - v < kWindow && rows.indptr[next + 1] - rows.indptr[v] <= kWindow) ++next;
            worker.rows(v, next);
        }
    });
    if (error || !count) return error;

    const auto parts_of = [&](int64_t v) { return (rows.indptr[v + 1] - rows.indptr[v] + kPart - 1) / kPart; };
    int64_t slots = 0;
    for (int64_t i = 0; i < count; ++i) {
        long_rows[i].first_slot = slots;
        slots += parts_of(long_rows[i].row);
    }
    const int64_t size = job.partial_size();
    const Buffer<float> partials(slots * size);
    if (!partials.ok()) return kOutOfMemory;
#pragma omp parallel num_threads(team(threads, slots * kPart * work))
    {
        Worker worker(job);
        if (!worker.ok()) fail();
#pragma omp for schedule(dynamic, 1)
        for (int64_t slot = 0; slot < slots; ++slot) {
            int64_t i = 0;
            while (i + 1 < count && long_rows[i + 1].first_slot <= slot) ++i;
            const int64_t v = long_rows[i].row;
            const int64_t begin = rows.indptr[v] + (slot - long_rows[i].first_slot) * kPart;
            const int64_t row_end = rows.indptr[v + 1];
            if (worker.ok())
                worker.part(v, begin, begin + kPart < row_end ? begin + kPart : row_end, partials.get() + slot * size);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t v = long_rows[i].row;
            if (worker.ok()) worker.join(v, partials.get() + long_rows[i].first_slot * size, parts_of(v));
        }
    }
    return error;
}

}  // namespace gqc::GQC_ISA
