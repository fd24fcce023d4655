// Dropout of a tensor of one value an edge and head in the order of edge ids, as kernels/dropout.cpp draws it.
#pragma once

#include "common/kernel.h"
#include "common/philox.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/heads.h"

namespace gqc::GQC_ISA {

struct EdgeDropout {
    const int64_t* seed;  // null: nothing is dropped
    int64_t node;
    uint32_t threshold;
    float factor;

    // Floats that the factors of `edges` edges take, with what is written behind the last.
    static int64_t size(int64_t edges, int64_t heads) { return edges * heads + kWords * kBlockElements; }

    // factors[i * heads + h] = 0 or `factor`, what the value of edge eids[begin + i] is multiplied with, up to `end`.
    __attribute__((noinline)) void factors(const AnyIndices& eids, int64_t begin, int64_t end, int64_t heads,
                                           float* factors) const {
        eids.with_type([&](auto* ids) {
            with_heads(heads, [&](auto known) {
                if constexpr (known) {
                    factors_of_part<known>(ids + begin, end - begin, factors);
                } else {
                    factors_of_any(ids + begin, end - begin, heads, factors);
                }
            });
        });
    }

  private:
    // Heads that divide a block of the generator, so that an edge's bits are in one block.
    template <int Heads, typename Index>
    void factors_of_part(const Index* eids, int64_t count, float* factors) const {
        constexpr int kEdges = kBlockElements / Heads;  // of a block
        const Blocks blocks{Philox(seed, node)};
        for (int64_t first = 0; first < count; first += kWords, factors += kWords * Heads) {
            const int64_t here = count - first < kWords ? count - first : kWords;
            Vector<Index, kWords> ids{};
            if (here == kWords) {
                std::memcpy(&ids, eids + first, sizeof ids);
            } else {
                std::memcpy(&ids, eids + first, static_cast<size_t>(here) * sizeof(Index));
            }
            const Words edge = __builtin_convertvector(ids, Words);
            const RandomWords words = blocks(edge / kEdges);
            uint16_t drawn[kWords * Heads];
            if constexpr (Heads == kBlockElements) {
                uint64_t pairs[kWords][2];
                for (int lane = 0; lane < kWords; ++lane) {
                    pairs[lane][0] = words.words01[lane];
                    pairs[lane][1] = words.words23[lane];
                }
                std::memcpy(drawn, pairs, sizeof drawn);
            } else {
                // The numbers of an edge are moved to the low end of its lane.
                const Words half = (edge & (kEdges / 2)) != 0 ? words.words23 : words.words01;
                const Words moved = half >> edge % (kEdges / 2) * (16 * Heads);
                const auto narrow = __builtin_convertvector(moved, Vector<Narrow<Heads>, kWords>);
                static_assert(sizeof narrow == sizeof drawn);
                std::memcpy(drawn, &narrow, sizeof drawn);
            }
            keep_all<kWords * Heads>(drawn, factors);
        }
    }

    // As keep. GCC would leave the few numbers of one head to a loop over single ones.
    template <int Count>
    void keep_all(const uint16_t* drawn, float* factors) const {
        constexpr int kLanes = Count < kWidest ? Count : kWidest;
        const auto of_kept = broadcast<kLanes>(factor);
        for (int i = 0; i < Count; i += kLanes) {
            Vector<uint16_t, kLanes> numbers;
            std::memcpy(&numbers, drawn + i, sizeof numbers);
            const auto are_kept =
                __builtin_convertvector(numbers, Vector<int32_t, kLanes>) >= static_cast<int32_t>(threshold);
            put(factors + i, are_kept ? of_kept : Vector<float, kLanes>{});
        }
    }

    template <int Heads>
    using Narrow = std::conditional_t<Heads == 4, uint64_t, std::conditional_t<Heads == 2, uint32_t, uint16_t>>;

    void keep(const uint16_t* __restrict drawn, int64_t count, float* __restrict factors) const {
        const int32_t least = static_cast<int32_t>(threshold);
        const float of_kept = factor;
        for (int64_t i = 0; i < count; ++i) factors[i] = drawn[i] >= least ? of_kept : 0.0f;
    }

    // Any number of heads: up to 8 of them lie in two blocks.
    template <typename Index>
    void factors_of_any(const Index* eids, int64_t count, int64_t heads, float* factors) const {
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
                keep(drawn, of_unit, factors + unit / of_an_edge * heads + head);
            }
        }
    }
};

}  // namespace gqc::GQC_ISA
