// What both directions of GAT's edge phase do with the edges of a node, see heads.h for how their values stand.
#pragma once

#include "common/kernel.h"
#include "cpu/graph/heads.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

constexpr float kLowest = -3.402823466e38f;

// A matrix with the columns and edge ids of its entries.
struct Neighbours {
    int64_t count;
    AnyIndices indptr, indices, eids;

    Neighbours(const void* indptr, int64_t rows, const void* indices, const void* eids, bool is_int64)
        : count(rows), indptr(indptr, is_int64), indices(indices, is_int64), eids(eids, is_int64) {}

    int64_t last_entry() const { return indptr[count] - 1; }

    // Calls body(the rows with the type of their indices).
    template <typename Body>
    Error with_rows(const Body& body) const {
        Error error = nullptr;
        indptr.with_type([&](auto* starts) {
            using Index = std::remove_const_t<std::remove_pointer_t<decltype(starts)>>;
            error = body(Rows<Index>{starts, count});
        });
        return error;
    }
};

// to[s][(p - begin) * heads + h] = from[rows[p]][s][h] for entries p = begin .. end and Streams values s; rows are
// fetched into the cache, none behind rows[last].
template <int Streams>
__attribute__((noinline)) void gather(const float* from, const AnyIndices& numbers, int64_t begin, int64_t end,
                                      int64_t last, int64_t heads, float* const (&to)[Streams]) {
    numbers.with_type([&](auto* rows) {
        with_heads(heads, [&](auto known) {
            const int64_t count = known ? static_cast<int64_t>(known) : heads;
            const int64_t distance = entries_ahead(count * Streams * static_cast<int64_t>(sizeof(float)));
            for (int64_t p = begin, at = 0; p < end; ++p, at += count) {
                const float* const row = from + static_cast<int64_t>(rows[p]) * count * Streams;
                const int64_t ahead = p + distance < last ? p + distance : last;
                const float* const next = from + static_cast<int64_t>(rows[ahead]) * count * Streams;
                for (int64_t i = 0; i < count * Streams; i += 16) __builtin_prefetch(next + i);
                for (int s = 0; s < Streams; ++s)
                    for (int64_t h = 0; h < count; ++h) to[s][at + h] = row[s * count + h];
            }
        });
    });
}

// The leaky ReLU of logits, and what its gradient is multiplied with.
inline Floats leaky(Floats x, float slope) {
    return x > Floats{} ? x : x * slope;
}
inline Floats leaky_gradient(Floats x, Floats gradient, float slope) {
    return x > Floats{} ? gradient : gradient * slope;
}

}  // namespace gqc::GQC_ISA
