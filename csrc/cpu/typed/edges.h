// The edges of a graph by their type.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// Edges of type t stand at starts[t] .. starts[t + 1], those of one destination together and destinations rising.
template <typename Index>
struct TypedEdges {
    using Id = Index;

    int64_t types;
    const int64_t* starts;
    const Index* src;
    const Index* dst;

    int64_t count() const { return starts[types]; }

    // The first edge of a type into row v or a later one.
    int64_t first_into(int64_t type, int64_t v) const {
        int64_t low = starts[type], high = starts[type + 1];
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (dst[middle] < v)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
};

// Calls body with the edges, src and dst of the index type.
template <typename Body>
Error with_typed_edges(int64_t is_int64, int64_t types, const int64_t* starts, const void* src, const void* dst,
                       const Body& body) {
    if (is_int64)
        return body(
            TypedEdges<int64_t>{types, starts, static_cast<const int64_t*>(src), static_cast<const int64_t*>(dst)});
    return body(TypedEdges<int32_t>{types, starts, static_cast<const int32_t*>(src), static_cast<const int32_t*>(dst)});
}

// Row i of out, of which one begins every `stride` elements, = row rows[i] of `width` elements.
template <typename T, typename Index>
inline void gather_rows(const T* data, int64_t width, const Index* rows, int64_t count, T* out, int64_t stride) {
    constexpr int64_t kAheadRows = 16;
    const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
        if (i + kAheadRows < count) {
            const T* ahead = data + static_cast<int64_t>(rows[i + kAheadRows]) * width;
            for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(reinterpret_cast<const char*>(ahead) + b);
        }
        std::memcpy(out + i * stride, data + static_cast<int64_t>(rows[i]) * width, static_cast<size_t>(bytes));
    }
}

// How destinations are cut into `parts`, of about the same number of edges, and these into blocks of at most `size`,
// whose sums a thread keeps in its cache: enough that each type has some edges into a block, since products take a tile
// of rows at a time.
struct BlocksOfDestinations {
    int64_t size, parts;

    BlocksOfDestinations(int64_t destinations, int64_t edges, int64_t types) {
        constexpr int64_t kLeast = 64, kMost = 1024, kEdges = 4096, kEdgesOfType = 32;
        const int64_t wanted = types * kEdgesOfType > kEdges ? types * kEdgesOfType : kEdges;
        const double fair =
            static_cast<double>(wanted) * static_cast<double>(destinations) / static_cast<double>(edges + 1);
        size = fair < kLeast ? kLeast : fair > kMost ? kMost : static_cast<int64_t>(fair);
        const int64_t by_size = (destinations + size - 1) / size, by_edges = edges / (2 * wanted) + 1;
        parts = by_size > by_edges ? by_size : by_edges;
    }
};

}  // namespace gqc::GQC_ISA
