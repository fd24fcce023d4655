// For each type, the product of the sources' rows, transposed, with the destinations' rows over its edges.
#pragma once

#include <omp.h>

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/shape.h"
#include "cpu/typed/edges.h"
#if defined(__AMX_INT8__)
#    include "cpu/gemm/amx/partial_product.h"
#else
#    include "cpu/gemm/partial_product.h"
#endif

namespace gqc::GQC_ISA {

// wide[t] += u' . grad over the edges of type t; u: [sources, m], grad: [destinations, n], wide: [types, m, n].
template <typename Index>
Error contract_by_type(int64_t threads, const TypedEdges<Index>& edges, int64_t m, int64_t n, const int8_t* u,
                       const int8_t* grad, int64_t* wide) {
    bool ok = true;
#pragma omp parallel num_threads(team(threads, edges.count() * m * n, kLeastProducts)) reduction(&& : ok)
    {
        const Buffer<int8_t> left(kChunk * m), right(kChunk * n);
        PartialProduct part({m, n, kChunk}, {{left.get(), kChunk, m, false}, false},
                            {{right.get(), kChunk, n, false}, false});
        ok = left.ok() && right.ok() && part.ok();
        const int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
        const int64_t first = edges.count() * share / shares, last = edges.count() * (share + 1) / shares;
        for (int64_t t = 0; t < edges.types && ok; ++t) {
            const int64_t begin = edges.starts[t] > first ? edges.starts[t] : first;
            const int64_t end = edges.starts[t + 1] < last ? edges.starts[t + 1] : last;
            int64_t in_part = 0;
            for (int64_t p = begin; p < end; p += kChunk) {
                const int64_t count = end - p < kChunk ? end - p : kChunk;
                gather_rows(u, m, edges.src + p, count, left.get(), m);
                gather_rows(grad, n, edges.dst + p, count, right.get(), n);
                part.add_chunk(0, count);
                in_part += count;
                if (in_part + kChunk > kExactProducts || p + count == end) {
#pragma omp critical(gqc_typed_sums)
                    part.empty_into(wide + t * m * n);
                    in_part = 0;
                }
            }
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
