// What the kernels of GAT's fused edge phase share: which heads and features a lane works on, how it reads them, which
// edges dropout keeps, and how results are written.
//
// A row's features are those of its heads one after another. A group of lanes reads one neighbour's row, so a lane
// computes the logits of its own head only, from the node numbers el and er. Nothing is stored for an edge.
#pragma once

#include "cuda/philox.cuh"
#include "cuda/spmm.cuh"

__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000u);
}

// Rows of heads * width features. A head is read in chunks of V features. The lanes of a group take all chunks of
// heads_of_tile heads or, of a head with more than 32 chunks, chunks_of_part chunks: one of its `parts`.
struct Heads {
    int heads, width;
    int lanes, heads_of_tile, parts, chunks_of_part;

    __device__ __forceinline__ Heads(int64_t heads, int64_t width, int64_t lanes, int64_t heads_of_tile, int64_t parts,
                                     int64_t chunks_of_part)
        : heads(static_cast<int>(heads)),
          width(static_cast<int>(width)),
          lanes(static_cast<int>(lanes)),
          heads_of_tile(static_cast<int>(heads_of_tile)),
          parts(static_cast<int>(parts)),
          chunks_of_part(static_cast<int>(chunks_of_part)) {}

    // Where the number of a node's head stands in [nodes, heads].
    __device__ __forceinline__ uint64_t at(uint32_t node, int head) const {
        return static_cast<uint64_t>(node) * static_cast<uint32_t>(heads) + static_cast<uint32_t>(head);
    }
    __device__ __forceinline__ int64_t row_width() const { return static_cast<int64_t>(heads) * width; }
};

// What a lane works on; blockIdx.y is the number of the tile.
template <int V>
struct Tile {
    int lanes, groups, group;
    int first_head;  // of the group
    int head, part;
    int place, run;  // number of the lane among the `run` ones that share the part of the head
    int feature;     // of the row
    int features;    // of the lane: at most V, 0 for none
    bool is_first;   // of these lanes

    __device__ __forceinline__ Tile(const Heads& of)
        : lanes(of.lanes),
          groups(kWarp / of.lanes),
          group(lane_id() / of.lanes),
          first_head(static_cast<int>(blockIdx.y) / of.parts * of.heads_of_tile),
          part(static_cast<int>(blockIdx.y) % of.parts) {
        const int lane = lane_id() % lanes, in_tile = lane / of.chunks_of_part;
        const int chunks = (of.width + V - 1) / V, first_chunk = part * of.chunks_of_part;
        place = lane % of.chunks_of_part;
        head = first_head + in_tile;
        run = max(min(of.chunks_of_part, chunks - first_chunk), 0);
        const int offset = (first_chunk + place) * V;
        const bool has_head = in_tile < of.heads_of_tile && head < of.heads;
        features = has_head && place < run ? min(V, of.width - offset) : 0;
        if (!has_head) head = first_head, place = run;
        feature = head * of.width + offset;
        is_first = has_head && place == 0;
    }

    // The sum of x over the groups, then over the lanes that share a part of a head; the first of them gets it.
    __device__ __forceinline__ float sum_of_head(float x) const {
#pragma unroll 1
        for (int distance = kWarp / 2; distance >= lanes; distance /= 2) {
            x += __shfl_xor_sync(kAllLanes, x, distance);
        }
#pragma unroll 1
        for (int distance = 1; distance < run; distance *= 2) {
            const float other = __shfl_down_sync(kAllLanes, x, static_cast<unsigned>(distance));
            if (place + distance < run) x += other;
        }
        return x;
    }
};

// How a lane reads its features: all of them in one vector, as in SPMM, where a head's width and its address allow it.
template <typename Load>
struct Whole : Load {
    static constexpr bool kWhole = true;
};
using WholeInt8x16 = Whole<Int8x16>;
using WholeInt8x4 = Whole<Int8x4>;
using WholeFloat32x4 = Whole<Float32x4>;

// Else up to four features one by one, of int8 or float32 as the launch says.
struct AnyX4 {
    using Raw = float4;
    static constexpr int kValues = 4;
    static constexpr bool kWhole = false;
    __device__ static __forceinline__ Raw nothing() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
};

// A pointer that the compiler is to hold in registers: it would compute it from constants for each edge anew.
__device__ __forceinline__ const char* held(const char* p) {
#ifndef GQC_EMULATED
    asm volatile("" : "+l"(p));
#endif
    return p;
}

// The lane's number of every node: that of its head.
template <typename T>
struct NodeNumbers {
    const char* first;
    uint32_t row_bytes;

    template <int V>
    __device__ __forceinline__ NodeNumbers(const void* x, const Heads& of, const Tile<V>& tile)
        : first(held(reinterpret_cast<const char*>(static_cast<const T*>(x) + tile.head))),
          row_bytes(static_cast<uint32_t>(of.heads) * static_cast<uint32_t>(sizeof(T))) {}

    __device__ __forceinline__ T load(uint32_t node) const {
        return global_load<T>(first + static_cast<uint64_t>(node) * row_bytes);
    }
};

// The lane's features of every row.
template <typename Load>
struct FeatureRows {
    const char* first;
    uint32_t row_bytes;

    __device__ __forceinline__ FeatureRows(const void* x, bool, const Heads& of, const Tile<Load::kValues>& tile)
        : first(held(static_cast<const char*>(x) + Load::row_bytes(tile.feature))),
          row_bytes(static_cast<uint32_t>(Load::row_bytes(of.row_width()))) {}

    __device__ __forceinline__ typename Load::Raw load(uint32_t row) const {
        return global_load<typename Load::Raw>(first + static_cast<uint64_t>(row) * row_bytes);
    }
};
template <>
struct FeatureRows<AnyX4> {
    const void* x;
    bool is_int8;
    int64_t width;
    int feature, features;

    __device__ __forceinline__ FeatureRows(const void* x, bool is_int8, const Heads& of, const Tile<4>& tile)
        : x(x), is_int8(is_int8), width(of.row_width()), feature(tile.feature), features(tile.features) {}

    __device__ __forceinline__ float4 load(uint32_t row) const {
        const int64_t at = row * width + feature;
        float value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[i] = i >= features ? 0.0f
                       : is_int8     ? static_cast<float>(static_cast<const int8_t*>(x)[at + i])
                                     : static_cast<const float*>(x)[at + i];
        }
        return four(value);
    }
};

__device__ __forceinline__ float dot(uint32_t a, uint32_t b) {
    return static_cast<float>(__dp4a(static_cast<int>(a), static_cast<int>(b), 0));
}
__device__ __forceinline__ float dot(uint4 a, uint4 b) {
    int sum = __dp4a(static_cast<int>(a.x), static_cast<int>(b.x), 0);
    sum = __dp4a(static_cast<int>(a.y), static_cast<int>(b.y), sum);
    sum = __dp4a(static_cast<int>(a.z), static_cast<int>(b.z), sum);
    return static_cast<float>(__dp4a(static_cast<int>(a.w), static_cast<int>(b.w), sum));
}
__device__ __forceinline__ float dot(float4 a, float4 b) {
    return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmul_rn(a.x, b.x))));
}

// Which weights dropout keeps: that of edge e and head h has the random number of element e * heads + h.
struct Dropout {
    const int64_t* seed;  // null: all are kept; read for each draw rather than held in registers
    int64_t node;
    uint32_t least;
    int blocks;  // of eight random numbers, that the heads of a group can lie in

    __device__ __forceinline__ Dropout(const int64_t* seed, int64_t node, int64_t threshold, int64_t blocks)
        : seed(seed), node(node), least(static_cast<uint32_t>(threshold)), blocks(static_cast<int>(blocks)) {}

    // Bit j: whether the weight of the lane's head and edge eids[j] is kept. A lane draws one block for its group at a
    // time, since neighbouring heads share them: block b of edge j is draw 4 * b + j.
    template <int V>
    __device__ __forceinline__ uint32_t kept(const uint32_t (&eids)[kBatch], const Heads& of,
                                             const Tile<V>& tile) const {
        const uint32_t heads = static_cast<uint32_t>(of.heads), first_head = static_cast<uint32_t>(tile.first_head);
        const int lane = lane_id() % tile.lanes, draws = kBatch * blocks;
        const Philox stream(seed, node);
        uint32_t kept = 0;
#pragma unroll 1
        for (int first = 0; first < draws; first += tile.lanes) {
            const int mine = first + lane;
            const uint32_t low = mine & 1 ? eids[1] : eids[0], high = mine & 1 ? eids[3] : eids[2];
            const uint64_t element = static_cast<uint64_t>(mine & 2 ? high : low) * heads + first_head;
            const uint64_t block = element / kBlockElements + static_cast<uint32_t>(mine / kBatch);
            const uint32_t bits = kept_of_eight(stream.words(block), least);
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const uint32_t at = (eids[j] * heads + first_head) % kBlockElements +
                                    static_cast<uint32_t>(tile.head - tile.first_head);
                const int from = static_cast<int>(at / kBlockElements) * kBatch + j - first;
                const uint32_t of_lane = __shfl_sync(kAllLanes, bits, from & (tile.lanes - 1), tile.lanes);
                if (0 <= from && from < tile.lanes) kept |= (of_lane >> at % kBlockElements & 1u) << j;
            }
        }
        return kept;
    }
};

// Multiplied with it a dropped NaN stays NaN.
__device__ __forceinline__ float factor_if_kept(uint32_t kept, int j) {
    return kept >> j & 1u ? 1.0f : 0.0f;
}

__device__ __forceinline__ float leaky_relu(float x, float slope) {
    return x > 0.0f ? x : __fmul_rn(x, slope);
}

// What an edge's entry reads, a batch ahead: its neighbour and, for dropout, its id.
struct Edges {
    const void* neighbours;
    const void* eids;
    int is_int64, entries;
    bool drops;
    uint32_t neighbour[kBatch], eid[kBatch];

    __device__ __forceinline__ Edges(const void* neighbours, const void* eids, int64_t is_int64, int64_t entries,
                                     bool drops)
        : neighbours(neighbours),
          eids(eids),
          is_int64(static_cast<int>(is_int64)),
          entries(static_cast<int>(entries)),
          drops(drops) {}

    __device__ __forceinline__ void read(int first) {
        indices_from(neighbours, first, entries, is_int64, neighbour);
        if (drops) indices_from(eids, first, entries, is_int64, eid);
    }
};

// The first `count` values of a lane that has `features` of them. Where they are whole vectors, count is a power of two
// and `to` is on a multiple of as many floats, 4 at most.
template <typename Load, int V>
__device__ __forceinline__ void put_features(float* to, const float (&value)[V], int count, int features) {
    if constexpr (Load::kWhole) {
        put_values(to, value, count);
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i < count && i < features) to[i] = value[i];
        }
    }
}
