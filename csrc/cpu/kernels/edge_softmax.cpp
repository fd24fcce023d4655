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

    // Scratch elements for the longest row from first to last, in whole vectors.
    int64_t longest(int64_t first, int64_t last) const {
        int64_t most = 0;
        for (int64_t v = first; v < last; ++v) most = degree(v) > most ? degree(v) : most;
        return vectors(most * heads) * kWidest;
    }

    // Row v of edge values in CSC order, filled up to whole vectors.
    void gather(int64_t v, const float* values, float filler, float* row) const {
        for (int64_t p = rows.indptr[v]; p < rows.indptr[v + 1]; ++p) {
            const float* from = values + static_cast<int64_t>(eids[p]) * heads;
            for (int64_t h = 0; h < heads; ++h) *row++ = from[h];
        }
        const int64_t count = degree(v) * heads;
        for (int64_t i = count; i < vectors(count) * kWidest; ++i) *row++ = filler;
    }
    void scatter(int64_t v, const float* row, float* values) const {
        for (int64_t p = rows.indptr[v]; p < rows.indptr[v + 1]; ++p) {
            float* to = values + static_cast<int64_t>(eids[p]) * heads;
            for (int64_t h = 0; h < heads; ++h) to[h] = *row++;
        }
    }
};

// Turns a row of logits into its softmax. A NaN is not seen by the maximum but makes its exponential and so the sum
// NaN.
void softmax(float* row, int64_t count, const Heads& state) {
    state.fill(count, -__builtin_inff());
    for (int64_t i = 0; i < count; ++i) put(state.of(i), larger(at(row + i * kWidest), at(state.of(i))));
    state.reduce(count, [](auto a, auto b) { return larger(a, b); });
    for (int64_t i = 0; i < count; ++i) {
        float* const x = row + i * kWidest;
        put(x, exp_of_negative<kWidest>(at(x) - at(state.of(i))));
    }
    state.fill(count, 0.0f);
    for (int64_t i = 0; i < count; ++i) put(state.of(i), at(state.of(i)) + at(row + i * kWidest));
    state.reduce(count, [](auto a, auto b) { return a + b; });
    for (int64_t i = 0; i < count; ++i) put(row + i * kWidest, at(row + i * kWidest) / at(state.of(i)));
}

// Turns a row of gradients of the softmax `out` into the gradients of its logits: out * (grad - sum of out * grad).
void softmax_gradient(const float* out, float* row, int64_t count, const Heads& state) {
    state.fill(count, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
        float* const product = row + i * kWidest;
        put(product, at(product) * at(out + i * kWidest));
        put(state.of(i), at(state.of(i)) + at(product));
    }
    state.reduce(count, [](auto a, auto b) { return a + b; });
    for (int64_t i = 0; i < count; ++i) {
        float* const product = row + i * kWidest;
        put(product, at(product) - at(out + i * kWidest) * at(state.of(i)));
    }
}

// Calls body(v, count, row, other, state) for each row v of `count` > 0 vectors, with scratch for two rows.
template <typename Index, typename Body>
Error for_each_row(int64_t threads, const EdgeRows<Index>& edges, const Body& body) {
    Error error = nullptr;
    for_row_ranges(threads, edges.rows, edges.heads * 8, [&](int64_t first, int64_t last) {
        const int64_t longest = edges.longest(first, last);
        const Buffer<float> scratch(2 * longest);
        const Heads state(edges.heads);
        if (!scratch.ok() || !state.ok()) {
            __atomic_store_n(&error, kOutOfMemory, __ATOMIC_RELAXED);
            return;
        }
        for (int64_t v = first; v < last; ++v) {
            const int64_t count = vectors(edges.degree(v) * edges.heads);
            if (count) body(v, count, scratch.get(), scratch.get() + longest, state);
        }
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
        return for_each_row(threads, edges, [&](int64_t v, int64_t count, float* row, float*, const Heads& state) {
            edges.gather(v, logits, -__builtin_inff(), row);
            softmax(row, count, state);
            edges.scatter(v, row, out);
        });
    });
}

// result[e, h] = gradient of the logits, from the softmax `out` and its gradient `grad`.
GQC_KERNEL(edge_softmax_bwd)(int64_t threads, int64_t is_int64, int64_t rows, int64_t, const void* indptr,
                             const void* eids, const float* out, const float* grad, int64_t heads, float* result) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeRows<Index> edges{{static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), heads};
        return for_each_row(threads, edges,
                            [&](int64_t v, int64_t count, float* row, float* weights, const Heads& state) {
                                edges.gather(v, out, 0.0f, weights);
                                edges.gather(v, grad, 0.0f, row);
                                softmax_gradient(weights, row, count, state);
                                edges.scatter(v, row, result);
                            });
    });
}

}  // namespace gqc::GQC_ISA
