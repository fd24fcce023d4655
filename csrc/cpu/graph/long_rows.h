// Rows of a matrix that have too many entries for one thread, in parts that threads share.
#pragma once

#include <omp.h>

#include <type_traits>

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/compressed.h"

namespace gqc::GQC_ISA {

// Entries of a part of a row whose sum is all that is wanted. Sums of so many products of int8 are exact in int32.
constexpr int64_t kSplit = 8192;

// The rows with more than `size` entries, each cut into parts of `size`. Where it is cut depends on nothing else, so
// its sums do not depend on the number of threads.
template <typename Index>
class LongRows {
  public:
    // Entries begin .. end of the long row number i.
    struct Part {
        int64_t i, begin, end;
    };

    LongRows(Rows<Index> rows, int64_t size) : size(size), rows_(rows), count_(count_long()), long_(count_ + 1) {
        if (ok()) find();
    }

    bool ok() const { return long_.ok(); }
    int64_t count() const { return count_; }
    int64_t parts() const { return first_part(count_); }

    int64_t row(int64_t i) const { return long_[i].row; }  // the end of the matrix for i = count()
    int64_t first_part(int64_t i) const { return long_[i].first_part; }
    int64_t parts_of(int64_t i) const { return first_part(i + 1) - first_part(i); }

    Part operator[](int64_t part) const {
        const int64_t i = first([&](const Long& x) { return x.first_part > part; }) - 1;
        const int64_t begin = rows_.indptr[row(i)] + (part - first_part(i)) * size, end = rows_.indptr[row(i) + 1];
        return {i, begin, begin + size < end ? begin + size : end};
    }

    // The first long row from row v on, count() where there is none.
    int64_t next(int64_t v) const {
        return first([&](const Long& x) { return x.row >= v; });
    }

    const int64_t size;

  private:
    struct Long {
        int64_t row, first_part;
    };

    int64_t entries(int64_t v) const { return rows_.indptr[v + 1] - rows_.indptr[v]; }

    int64_t count_long() const {
        int64_t count = 0;
        for (int64_t v = 0; v < rows_.count; ++v) count += entries(v) > size;
        return count;
    }

    void find() const {
        int64_t parts = 0;
        for (int64_t v = 0, i = 0; i < count_; ++v) {
            if (entries(v) <= size) continue;
            long_[i++] = {v, parts};
            parts += (entries(v) + size - 1) / size;
        }
        long_[count_] = {rows_.count, parts};
    }

    // The first long row that `is` true of, which it is of all behind it too.
    template <typename Condition>
    int64_t first(const Condition& is) const {
        int64_t low = 0, high = count_;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (is(long_[middle]))
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }

    const Rows<Index> rows_;
    const int64_t count_;
    const Buffer<Long> long_;  // with one more behind the last row
};

template <typename Worker, typename = void>
struct FinishesParts : std::false_type {};
template <typename Worker>
struct FinishesParts<Worker, std::void_t<decltype(&Worker::finish_part)>> : std::true_type {};

// Works on long rows. `Worker` is the scratch memory of a thread:
//   Worker(job), ok()
//   part(v, begin, end, partial)        entries begin .. end of row v, into job.partial_size() elements
//   join(v, partials, parts)            what the parts of a row make together
//   finish_part(begin, end, partial)    where there is one: a part once more, of which `partial` is what join() left
// Elements are Job::Partial. `work` is how many elementary steps an entry takes.
template <typename Worker, typename Job, typename Index>
Error for_long_rows(int64_t threads, const LongRows<Index>& rows, int64_t work, const Job& job) {
    if (!rows.ok()) return kOutOfMemory;
    if (!rows.count()) return nullptr;
    const int64_t size = job.partial_size();
    const Buffer<typename Job::Partial> memory(rows.parts() * size);
    if (!memory.ok()) return kOutOfMemory;
    const auto partials = [&](int64_t i) { return memory.get() + rows.first_part(i) * size; };
    bool ok = true;
#pragma omp parallel num_threads(team(threads, rows.parts() * rows.size * work)) reduction(&& : ok)
    {
        Worker worker(job);
        ok = worker.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < rows.parts(); ++part) {
            const auto [i, begin, end] = rows[part];
            if (ok) worker.part(rows.row(i), begin, end, memory.get() + part * size);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < rows.count(); ++i)
            if (ok) worker.join(rows.row(i), partials(i), rows.parts_of(i));
        if constexpr (FinishesParts<Worker>::value) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t part = 0; part < rows.parts(); ++part) {
                const auto [i, begin, end] = rows[part];
                if (ok) worker.finish_part(begin, end, memory.get() + part * size);
            }
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
