// Rows of a compressed matrix, shared out to warps in equal parts however long the longest row is.
//
// A row costs its entries and kRowCost. All rows one after another are cut into shares of the same cost, one a warp. A
// row with more entries than a share costs is cut wherever a share ends: its pieces go to scratch memory, from where a
// second kernel puts them together. Any other row belongs to the share in which it begins. So no share costs more than
// twice another, nothing about the graph has to be known before the launch but its size, and each result is computed in
// an order that the graph and the number of shares fix.
#pragma once

#include "cuda/device.cuh"

constexpr int kRowCost = 4;
constexpr int kShareWarps = 4;  // of a block that works on shares
constexpr int kShareThreads = kShareWarps * kWarp;
constexpr int kJoinWarps = 8;
constexpr int kJoinThreads = kJoinWarps * kWarp;

// Entries between which no more than 32 bits are read: positions, nodes and edge ids are below 2^31.
__device__ __forceinline__ uint32_t index_at(const void* indices, int64_t i, int is_int64) {
    return __ldg(static_cast<const uint32_t*>(indices) + (i << is_int64));
}

// indices[first] .. indices[first + N - 1] as far as there are so many, 0 for others.
template <int N>
__device__ __forceinline__ void indices_from(const void* indices, int first, int entries, int is_int64,
                                             uint32_t (&index)[N]) {
    const uint32_t* const at = static_cast<const uint32_t*>(indices) + (static_cast<int64_t>(first) << is_int64);
    const int left = entries - first;
    if (is_int64) {
#pragma unroll
        for (int j = 0; j < N; ++j) index[j] = j < left ? __ldg(at + 2 * j) : 0;
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) index[j] = j < left ? __ldg(at + j) : 0;
    }
}

struct Shares {
    const void* indptr;
    int is_int64;
    int rows, entries;
    int cost;  // of a share

    __device__ __forceinline__ Shares(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost)
        : indptr(indptr),
          is_int64(static_cast<int>(is_int64)),
          rows(static_cast<int>(rows)),
          entries(static_cast<int>(entries)),
          cost(static_cast<int>(cost)) {}

    // First entry of a row.
    __device__ __forceinline__ int begin(int row) const { return static_cast<int>(index_at(indptr, row, is_int64)); }
    // Cost of all rows before it.
    __device__ __forceinline__ int64_t start(int row) const {
        return begin(row) + static_cast<int64_t>(kRowCost) * row;
    }
    __device__ __forceinline__ int64_t total() const { return entries + static_cast<int64_t>(kRowCost) * rows; }

    // The row in which a share begins: the last one whose start() is not behind `cost`. A warp looks at 32 rows at
    // once.
    __device__ __forceinline__ int row_at(int64_t cost) const {
        uint32_t low = 0, high = static_cast<uint32_t>(rows);  // start(low) <= cost < start(high)
        while (high - low > 1) {
            const uint32_t step = (high - low + kWarp) / (kWarp + 1);
            const uint32_t row = low + static_cast<uint32_t>(lane_id() + 1) * step;
            const bool before = row < high && start(static_cast<int>(row)) <= cost;
            const uint32_t skipped = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, before)));
            high = min(high, low + (skipped + 1) * step);
            low += skipped * step;
        }
        return static_cast<int>(low);
    }
};

// Pieces of cut rows in scratch memory. A share has room for two: where a cut row begins and where one goes on.
__device__ __forceinline__ int beginning_slot(int share) {
    return 2 * share + 1;
}
__device__ __forceinline__ int going_on_slot(int share) {
    return 2 * share;
}

// The warp works on its share, if it is one of the `count`. `sum` has
//     look_ahead(entry)       told before add() of the first entry that will be added
//     add(row, first, last)   the row's entries first .. last - 1, starting from nothing
//     finish(row)             what was added is all of the row
//     keep(slot)              it is a piece of a row
// cut_rows[share] gets the cut row that begins in the share, or -1.
template <typename Sum>
__device__ __forceinline__ void sum_share(const Shares& shares, int64_t count, Sum& sum, int* cut_rows) {
    const int share = static_cast<int>(blockIdx.x) * kShareWarps + warp_id();
    if (share >= count) return;
    const int64_t from = share * static_cast<int64_t>(shares.cost);
    int left = static_cast<int>(min(static_cast<int64_t>(shares.cost), shares.total() - from));
    int row = shares.row_at(from), first = shares.begin(row);
    const int64_t behind = from - first - static_cast<int64_t>(kRowCost) * row;  // how far into the row it begins
    const bool is_first_of_features = lane_id() == 0 && blockIdx.y == 0;
    bool goes_on = false;
    if (is_first_of_features) cut_rows[share] = -1;
    if (behind > 0) {
        const int end = shares.begin(row + 1);
        goes_on = end - first > shares.cost && behind < end - first;
        if (goes_on) {
            first += static_cast<int>(behind);
        } else {
            left -= static_cast<int>(end - first + kRowCost - behind);
            first = end;
            ++row;
        }
    }
    if (first < shares.entries) sum.look_ahead(first);
    while (row < shares.rows && left > 0) {
        const int end = shares.begin(row + 1), length = end - first;
        const bool is_cut = goes_on || length > shares.cost;
        sum.add(row, first, is_cut ? first + min(left, length) : end);
        if (is_cut) {
            sum.keep(goes_on ? going_on_slot(share) : beginning_slot(share));
            if (is_first_of_features && !goes_on) cut_rows[share] = row;
        } else {
            sum.finish(row);
        }
        goes_on = false;
        left -= length + kRowCost;
        first = end;
        ++row;
    }
}

// The block puts together the cut rows that begin in 32 shares, 32 features of them: blockIdx.y says which. `join` has
//     Piece                   what one thread holds
//     nothing(), load(slot, feature), add(Piece&, Piece)
//     finish(row, feature, Piece)
// `scratch` is a shared array of kJoinThreads Pieces.
template <typename Join, typename Scratch>
__device__ __forceinline__ void join_cut_rows(const Shares& shares, int64_t count, const int* cut_rows, int64_t width,
                                              Join& join, Scratch& scratch) {
    using Piece = typename Join::Piece;
    const int first_share = static_cast<int>(blockIdx.x) * kWarp, mine = first_share + lane_id();
    const int feature = static_cast<int>(blockIdx.y) * kWarp + lane_id();
    const int cut_row = mine < count ? cut_rows[mine] : -1;
    for (uint32_t left = __ballot_sync(kAllLanes, cut_row >= 0); left; left &= left - 1) {
        const int at = __ffs(static_cast<int>(left)) - 1;
        const int row = __shfl_sync(kAllLanes, cut_row, at);
        const int end = shares.begin(row + 1);
        const int share = first_share + at;
        const int64_t last_cost = end - 1 + static_cast<int64_t>(kRowCost) * row;
        const int pieces = static_cast<int>(last_cost / shares.cost - share) + 1;
        Piece sum = join.nothing();
        if (feature < width) {
#pragma unroll 4
            for (int i = warp_id(); i < pieces; i += kJoinWarps) {
                join.add(sum, join.load(i ? going_on_slot(share + i) : beginning_slot(share), feature));
            }
        }
        scratch[threadIdx.x] = sum;
        __syncthreads();
        if (warp_id() == 0 && feature < width) {
            for (int i = 1; i < kJoinWarps; ++i) {
                const Piece other = scratch[i * kWarp + lane_id()];
                join.add(sum, other);
            }
            join.finish(row, feature, sum);
        }
        __syncthreads();
    }
}

// Adds up a value[V] of each group of `lanes` lanes over the groups of the warp. Afterwards a lane holds the sums of
// V * lanes / 32 of them, at least one; they are value[0] .. and were value[i] .. for the i that is returned.
template <int Left, int Distance, typename T, int V>
__device__ __forceinline__ int sum_over_distance(T (&value)[V], int lanes) {
    int first = 0;
    if constexpr (Distance > 0) {
        if (Distance < lanes) return 0;
        if constexpr (Left == 1) {
            value[0] += __shfl_xor_sync(kAllLanes, value[0], Distance);
            sum_over_distance<1, Distance / 2>(value, lanes);
        } else {
            constexpr int kHalf = Left / 2;
            const bool upper = lane_id() & Distance;
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
                const T given = upper ? value[i] : value[i + kHalf];
                const T kept = upper ? value[i + kHalf] : value[i];
                value[i] = kept + __shfl_xor_sync(kAllLanes, given, Distance);
            }
            first = (upper ? kHalf : 0) + sum_over_distance<kHalf, Distance / 2>(value, lanes);
        }
    }
    return first;
}
template <int V, typename T>
__device__ __forceinline__ int sum_over_groups(T (&value)[V], int lanes) {
    return sum_over_distance<V, kWarp / 2>(value, lanes);
}

// Whether the sums that sum_over_groups() leaves to the lane are the lane's alone, or it is the first that holds them.
template <int V>
__device__ __forceinline__ bool holds_sums_first(int lanes) {
    return (lane_id() & (kWarp / V - 1) & ~(lanes - 1)) == 0;
}
