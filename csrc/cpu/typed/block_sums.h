// The sums over the in-edges of a block of destinations, each edge with the product of its type.
#pragma once

#include <omp.h>

#include <cstdint>

#include "common/kernel.h"
#include "cpu/typed/edges.h"

namespace gqc::GQC_ISA {

// Works on all destinations block by block. Where blocks begin depends on the graph only, so sums do not depend on the
// number of threads. `Worker` is the scratch memory of a thread:
//   Worker(job, destinations of a block), ok()
//   start(v0, v1)                 a block of destinations
//   add(type, edge, count)        some edges into it
//   finish()                      the block is complete
//   largest()                     magnitude of the largest value so far
template <typename Worker, typename Job, typename Index>
Error for_typed_blocks(int64_t threads, const TypedEdges<Index>& edges, int64_t destinations, int64_t work,
                       const Job& job, uint32_t* largest) {
    const int64_t size = destinations_of_block(destinations, edges.count(), edges.types);
    uint32_t peak = 0;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, edges.count() * work + destinations)) reduction(max : peak) \
    reduction(&& : ok)
    {
        Worker worker(job, size);
        ok = worker.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t v0 = 0; v0 < destinations; v0 += size) {
            if (!ok) continue;
            const int64_t v1 = destinations - v0 < size ? destinations : v0 + size;
            worker.start(v0, v1);
            for (int64_t type = 0; type < edges.types; ++type) {
                const int64_t last = edges.first_into(type, v1);
                for (int64_t p = edges.first_into(type, v0); p < last; p += Worker::kEdges)
                    worker.add(type, p, last - p < Worker::kEdges ? last - p : Worker::kEdges);
            }
            worker.finish();
        }
        peak = worker.largest();
    }
    *largest = peak;
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
