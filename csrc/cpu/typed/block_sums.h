// The sums over the in-edges of destinations, each edge with the product of its type.
#pragma once

#include <omp.h>

#include <cstdint>

#include "common/kernel.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/long_rows.h"
#include "cpu/typed/edges.h"

namespace gqc::GQC_ISA {

// Of the edges into destinations v0 .. v1, which are counted type after type, adds number begin .. end.
template <typename Worker, typename Index>
void add_edges_into(int64_t v0, int64_t v1, int64_t begin, int64_t end, const TypedEdges<Index>& edges,
                    Worker& worker) {
    for (int64_t type = 0, number = 0; type < edges.types && number < end; ++type) {
        const int64_t first = edges.first_into(type, v0), count = edges.first_into(type, v1) - first;
        const int64_t last = first + (end - number < count ? end - number : count);
        for (int64_t p = first + (begin > number ? begin - number : 0); p < last; p += Worker::kEdges)
            worker.add(type, p, last - p < Worker::kEdges ? last - p : Worker::kEdges);
        number += count;
    }
}

template <typename Job>
struct LongDestinations {
    using Partial = typename Job::Partial;

    const Job& job;
    int32_t* largest;

    int64_t partial_size() const { return job.shape.n; }
};

// Sums of a destination in parts.
template <typename Worker, typename Job>
class LongDestinationsWorker {
    using Partial = typename Job::Partial;

  public:
    explicit LongDestinationsWorker(const LongDestinations<Job>& of) : of_(of), worker_(of.job, 1) {}
    ~LongDestinationsWorker() { raise(of_.largest, static_cast<int32_t>(worker_.largest())); }

    bool ok() const { return worker_.ok(); }

    void part(int64_t v, int64_t begin, int64_t end, Partial* partial) {
        const int64_t first = of_.job.rows.indptr[v];
        worker_.start(v, v + 1);
        add_edges_into(v, v + 1, begin - first, end - first, of_.job.edges, worker_);
        worker_.save(partial);
    }

    void join(int64_t v, const Partial* partials, int64_t parts) {
        worker_.start(v, v + 1);
        for (int64_t part = 0; part < parts; ++part) worker_.add_saved(partials + part * of_.partial_size());
        worker_.finish();
    }

  private:
    const LongDestinations<Job>& of_;
    Worker worker_;
};

// Works on all destinations: block by block, but for those with more than kSplit in-edges, which threads share in
// parts. Sums do not depend on the number of threads. `Worker` is the scratch memory of a thread:
//   Worker(job, destinations of a block), ok()
//   start(v0, v1)                 a block of destinations
//   add(type, edge, count)        some edges into it
//   finish()                      the block is complete
//   save(partial)                 instead: the sums of the only destination of the block, elements of Job::Partial
//   add_saved(partial)            such sums into the only destination
//   largest()                     magnitude of the largest value so far
template <typename Worker, typename Job>
Error for_typed_blocks(int64_t threads, const Job& job, uint32_t* largest) {
    const auto& edges = job.edges;
    const auto& rows = job.rows;
    const int64_t work = job.shape.n * job.shape.k;
    const BlocksOfDestinations blocks(rows.count, edges.count(), edges.types);
    const LongRows long_rows(rows, kSplit);
    int32_t peak = 0;
    const LongDestinations<Job> split{job, &peak};
    if (const Error error = for_long_rows<LongDestinationsWorker<Worker, Job>>(threads, long_rows, work, split))
        return error;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, edges.count() * work + rows.count)) reduction(&& : ok)
    {
        Worker worker(job, blocks.size);
        ok = worker.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t part = 0; part < blocks.parts; ++part) {
            const int64_t end = first_row(rows, part + 1, blocks.parts);
            for (int64_t v = first_row(rows, part, blocks.parts), next; ok && v < end; v = next) {
                const int64_t is_long = long_rows.row(long_rows.next(v));
                next = v + blocks.size < end ? v + blocks.size : end;
                if (is_long < next) next = is_long;
                if (v < next) {
                    worker.start(v, next);
                    add_edges_into(v, next, 0, edges.count(), edges, worker);
                    worker.finish();
                } else {
                    next = v + 1;
                }
            }
        }
        raise(&peak, static_cast<int32_t>(worker.largest()));
    }
    *largest = static_cast<uint32_t>(peak);
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
