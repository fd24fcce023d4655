// Softmax of edge values over the in-edges of each node, for every head, and its gradient.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/heads.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Index>
struct EdgeRows {
    Rows<Index> rows;
    const Index* eids;
    int64_t heads;

    int64_t degree(int64_t v) const { return rows.indptr[v + 1] - rows.indptr[v]; }

    // Entries of the longest row from first to last.
    int64_t longest(int64_t first, int64_t last) const {
        int64_t most = 0;
        for (int64_t v = first; v < last; ++v) most = degree(v) > most ? degree(v) : most;
        return most;
    }

    // Row v of edge values in CSC order.
    template <int Known>
    void gather(int64_t v, const float* values, float* row) const {
        const int64_t count = Known ? Known : heads, last = rows.entries() - 1;
        for (int64_t p = rows.indptr[v]; p < rows.indptr[v + 1]; ++p) {
            const float* const from = values + static_cast<int64_t>(eids[p]) * count;
            const int64_t ahead = p + kDistance < last ? p + kDistance : last;
            __builtin_prefetch(values + static_cast<int64_t>(eids[ahead]) * count);
            for (int64_t h = 0; h < count; ++h) *row++ = from[h];
        }
    }
    template <int Known>
    void scatter(int64_t v, const float* row, float* values) const {
        const int64_t count = Known ? Known : heads, last = rows.entries() - 1;
        for (int64_t p = rows.indptr[v]; p < rows.indptr[v + 1]; ++p) {
            float* const to = values + static_cast<int64_t>(eids[p]) * count;
            const int64_t ahead = p + kDistance < last ? p + kDistance : last;
            __builtin_prefetch(values + static_cast<int64_t>(eids[ahead]) * count, 1);
            for (int64_t h = 0; h < count; ++h) to[h] = *row++;
        }
    }

    static constexpr int64_t kDistance = 32;  // entries whose values are fetched before they are read or written
};

// Turns a row of `values` logits into its softmax. A NaN is not seen by the maximum but makes its exponential and so
// the sum NaN.
template <int Known>
void softmax(float* row, int64_t values, const HeadScratch& scratch) {
    PerHead<Known> most(scratch, 0), sum(scratch, 1);
    most.fill(-__builtin_inff());
    for_vectors<Known>(scratch, values, [&](int64_t n, int64_t m, auto lanes) {
        most.combine(m, lanes.or_else(at(row + n), -__builtin_inff()), Larger());
    });
    most.reduce(Larger());
    sum.fill(0.0f);
    for_vectors<Known>(scratch, values, [&](int64_t n, int64_t m, auto lanes) {
        const Floats x = exp_of_negative<kWidest>(at(row + n) - most[m]);
        put(row + n, x);
        sum.combine(m, lanes.or_else(x, 0.0f), Add());
    });
    sum.reduce(Add());
    for_vectors<Known>(scratch, values, [&](int64_t n, int64_t m, auto) { put(row + n, at(row + n) / sum[m]); });
}

// Turns a row of gradients of the softmax `out` into the gradients of its logits: out * (grad - sum of out * grad).
template <int Known>
void softmax_gradient(const float* out, float* row, int64_t values, const HeadScratch& scratch) {
    PerHead<Known> sum(scratch, 0);
    sum.fill(0.0f);
    for_vectors<Known>(scratch, values, [&](int64_t n, int64_t m, auto lanes) {
        const Floats product = at(row + n) * at(out + n);
        put(row + n, product);
        sum.combine(m, lanes.or_else(product, 0.0f), Add());
    });
    sum.reduce(Add());
    for_vectors<Known>(scratch, values,
                       [&](int64_t n, int64_t m, auto) { put(row + n, at(row + n) - at(out + n) * sum[m]); });
}

// Calls body(v, row, other, scratch) for each row v that has entries, with memory for the values of two rows.
template <typename Index, typename Body>
Error for_each_row(int64_t threads, const EdgeRows<Index>& edges, const Body& body) {
    Error error = nullptr;
    for_row_ranges(threads, edges.rows, edges.heads * 8, [&](int64_t first, int64_t last) {
        const int64_t longest = values_of(edges.longest(first, last), edges.heads);
        const Buffer<float> rows(2 * longest);
        const HeadScratch scratch(edges.heads, 2);
        if (!rows.ok() || !scratch.ok()) {
            __atomic_store_n(&error, kOutOfMemory, __ATOMIC_RELAXED);
            return;
        }
        for (int64_t v = first; v < last; ++v)
            if (edges.degree(v)) body(v, rows.get(), rows.get() + longest, scratch);
    });
    return error;
}

}  // namespace

// out[e, h] = softmax of logits[e, h] over the edges e = eids[indptr[v]] .. of each row v. The number of edges, not
// used here, is for back ends that cannot read indptr.
GQC_KERNEL(edge_softmax)(int64_t threads, int64_t is_int64, int64_t rows, int64_t, const void* indptr, const void* eids,
                         const float* logits, int64_t heads, float* out) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeRows<Index> edges{{static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), heads};
        return with_heads(heads, [&](auto known) {
            return for_each_row(threads, edges, [&](int64_t v, float* row, float*, const HeadScratch& scratch) {
                edges.template gather<known>(v, logits, row);
                softmax<known>(row, edges.degree(v) * heads, scratch);
                edges.template scatter<known>(v, row, out);
            });
        });
    });
}

// result[e, h] = gradient of the logits, from the softmax `out` and its gradient `grad`.
GQC_KERNEL(edge_softmax_bwd)(int64_t threads, int64_t is_int64, int64_t rows, int64_t, const void* indptr,
                             const void* eids, const float* out, const float* grad, int64_t heads, float* result) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeRows<Index> edges{{static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), heads};
        return with_heads(heads, [&](auto known) {
            return for_each_row(threads, edges, [&](int64_t v, float* row, float* weights, const HeadScratch& scratch) {
                edges.template gather<known>(v, out, weights);
                edges.template gather<known>(v, grad, row);
                softmax_gradient<known>(weights, row, edges.degree(v) * heads, scratch);
                edges.template scatter<known>(v, row, result);
            });
        });
    });
}

}  // namespace gqc::GQC_ISA
