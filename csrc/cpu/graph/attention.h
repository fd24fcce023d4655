// What both directions of GAT's edge phase do with the edges of a node: an edge has one value a head, and the values of
// a run of edges stand side by side, h0 h1 .. h0 h1 .., see heads.h.
#pragma once

#include "common/kernel.h"
#include "common/philox.h"
#include "cpu/graph/heads.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

constexpr float kLowest = -3.402823466e38f;

// A row of a matrix with the ends and ids of its entries.
template <typename Index>
struct Neighbours {
    Rows<Index> rows;
    const Index* indices;
    const Index* eids;
};

// Floats that the values of `edges` edges take: whole vectors, and one more that may be read behind the last value.
inline int64_t values_of(int64_t edges, int64_t heads) {
    return (vectors(edges * heads) + 1) * kWidest;
}

// Gives the elements behind `count` up to the next whole vector a value.
inline void fill_up(float* values, int64_t count, float x) {
    for (int64_t i = count; i < vectors(count) * kWidest; ++i) values[i] = x;
}

// to[s][(p - begin) * heads + h] = from[rows[p]][s][h] for entries p = begin .. end and Streams values s; rows are
// fetched into the cache, none behind rows[last].
template <int Streams, typename Index>
void gather(const float* from, const Index* rows, int64_t begin, int64_t end, int64_t last, int64_t heads,
            float* const (&to)[Streams]) {
    const auto copy = [&](auto known) {
        const int64_t count = known ? static_cast<int64_t>(known) : heads;
        for (int64_t p = begin, at = 0; p < end; ++p, at += count) {
            const float* const row = from + static_cast<int64_t>(rows[p]) * count * Streams;
            const int64_t ahead = p + kAhead < last ? p + kAhead : last;
            const float* const next = from + static_cast<int64_t>(rows[ahead]) * count * Streams;
            for (int64_t i = 0; i < count * Streams; i += 16) __builtin_prefetch(next + i);
            for (int s = 0; s < Streams; ++s)
                for (int64_t h = 0; h < count; ++h) to[s][at + h] = row[s * count + h];
        }
    };
    switch (heads) {
        case 1:
            return copy(std::integral_constant<int, 1>());
        case 2:
            return copy(std::integral_constant<int, 2>());
        case 4:
            return copy(std::integral_constant<int, 4>());
        case 8:
            return copy(std::integral_constant<int, 8>());
        default:
            return copy(std::integral_constant<int, 0>());
    }
}

// The leaky ReLU of logits, and what its gradient is multiplied with.
inline Floats leaky(Floats x, float slope) {
    return x > Floats{} ? x : x * slope;
}
inline Floats leaky_gradient(Floats x, Floats gradient, float slope) {
    return x > Floats{} ? gradient : gradient * slope;
}

// Dropout of a tensor of one value an edge and head in the order of edge ids, as kernels/dropout.cpp draws it.
struct AttentionDropout {
    const int64_t* seed;  // null: nothing is dropped
    int64_t node;
    uint32_t threshold;
    float factor;

    // values[i * heads + h] *= 0 or factor for the edges eids[0] .. eids[count].
    template <typename Index>
    void drop(const Index* eids, int64_t count, int64_t heads, float* values) const {
        if (!seed) return;
        switch (heads) {
            case 1:
                return drop_aligned<1>(eids, count, values);
            case 2:
                return drop_aligned<2>(eids, count, values);
            case 4:
                return drop_aligned<4>(eids, count, values);
            case 8:
                return drop_aligned<8>(eids, count, values);
            default:
                return drop_any(eids, count, heads, values);
        }
    }

  private:
    // Heads that divide a block of the generator, so that an edge's bits are in one block.
    template <int Heads, typename Index>
    void drop_aligned(const Index* eids, int64_t count, float* values) const {
        const Philox stream(seed, node);
        alignas(64) uint16_t random[kBlocks * kBlockElements], drawn[kBlocks * Heads];
        for (int64_t first = 0; first < count; first += kBlocks) {
            const int64_t edges = count - first < kBlocks ? count - first : kBlocks;
            const Index* const ids = eids + first;
            const auto element = [&](int64_t i) { return static_cast<uint64_t>(ids[i]) * Heads; };
            random_blocks(
                stream, [&](int64_t i) { return element(i < edges ? i : 0) / kBlockElements; }, random, edges);
            for (int64_t i = 0; i < edges; ++i)
                std::memcpy(drawn + i * Heads, random + i * kBlockElements + element(i) % kBlockElements,
                            Heads * sizeof *drawn);
            keep(drawn, edges * Heads, values + first * Heads);
        }
    }

    // drawn: one number for each value.
    void keep(const uint16_t* __restrict drawn, int64_t count, float* __restrict values) const {
        const int32_t least = static_cast<int32_t>(threshold);
        for (int64_t i = 0; i < count; ++i) values[i] *= drawn[i] >= least ? factor : 0.0f;
    }

    // Any number of heads: up to 8 of them lie in two blocks.
    template <typename Index>
    void drop_any(const Index* eids, int64_t count, int64_t heads, float* values) const {
        constexpr int64_t kUnits = kBlocks / 2;
        const Philox stream(seed, node);
        alignas(64) uint16_t random[kBlocks * kBlockElements];
        const int64_t of_an_edge = (heads + kBlockElements - 1) / kBlockElements, units = count * of_an_edge;
        const auto element = [&](int64_t unit) {
            return static_cast<uint64_t>(eids[unit / of_an_edge]) * static_cast<uint64_t>(heads) +
                   static_cast<uint64_t>(unit % of_an_edge) * kBlockElements;
        };
        for (int64_t first = 0; first < units; first += kUnits) {
            const int64_t last = first + kUnits < units ? first + kUnits : units;
            random_blocks(
                stream,
                [&](int64_t i) { return first + i / 2 < last ? element(first + i / 2) / kBlockElements + i % 2 : 0; },
                random, 2 * (last - first));
            for (int64_t unit = first; unit < last; ++unit) {
                const int64_t head = unit % of_an_edge * kBlockElements;
                const int64_t of_unit = heads - head < kBlockElements ? heads - head : kBlockElements;
                const uint16_t* const drawn =
                    random + (unit - first) * 2 * kBlockElements + element(unit) % kBlockElements;
                float* const value = values + unit / of_an_edge * heads + head;
                keep(drawn, of_unit, value);
            }
        }
    }
};

}  // namespace gqc::GQC_ISA
