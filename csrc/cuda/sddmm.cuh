// SDDMM: one row of output for each edge, from the rows of its operands. What both forms of it share.
#pragma once

#include "cuda/pack.cuh"

// One of the two operands. Edge i reads row rows[i] of data, or row i where rows is null; run r of the features starts
// at element offsets[r], or r * stride where offsets is null.
template <typename T>
struct EdgeOperand {
    const T* data;
    const void* rows;
    int32_t row_size;  // in T
    const int64_t* offsets;
    int64_t stride;

    __device__ __forceinline__ const T* row(int64_t edge, bool is_int64) const {
        int64_t row = edge;
        if (rows) row = is_int64 ? static_cast<const int64_t*>(rows)[edge] : static_cast<const int32_t*>(rows)[edge];
        return data + row * row_size;
    }
    __device__ __forceinline__ int start(int run) const {
        return static_cast<int>(offsets ? offsets[run] : run * stride);
    }
};

// How the lanes of a warp share out edges: `edges` at a time, each to `slots` runs at a time, each run to `lanes` packs
// at a time. All three are powers of two with the product 32, so nothing is divided.
struct Team {
    int lanes, slots, edges;
    int lane, slot, edge;  // of this thread

    __device__ __forceinline__ Team(int64_t log_lanes, int64_t log_slots)
        : lanes(1 << log_lanes),
          slots(1 << log_slots),
          edges(kWarp >> log_lanes >> log_slots),
          lane(lane_id() & (lanes - 1)),
          slot(lane_id() >> log_lanes & (slots - 1)),
          edge(lane_id() >> log_lanes >> log_slots) {}
};

// For loops over edges in steps of whole warps: number of this warp in the grid, and warps in the grid.
__device__ __forceinline__ int64_t grid_warp() {
    return grid_thread() / kWarp;
}
__device__ __forceinline__ int64_t grid_warps() {
    return grid_threads() / kWarp;
}

__device__ __forceinline__ float scale_of(const float* scale) {
    return scale ? *scale : 1.0f;
}
