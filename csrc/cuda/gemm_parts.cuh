// Sums over parts of the contracted index, for outputs that are small beside it: weights' gradients, and sums that
// int32 does not hold.
#pragma once

#include "cuda/gemm_tile.cuh"

// kWhole: both operands are as TileShare says.
template <typename Format, bool kWhole>
__device__ __forceinline__ void multiply_parts(const void* a, int64_t a_packed, int64_t a_along_k, const void* b,
                                               int64_t b_packed, int64_t b_along_k, int64_t m, int64_t n, int64_t k,
                                               int64_t part, int32_t* parts) {
    constexpr int kTile = kTileRows * kChunk, kStage = 2 * kTile, kWarpsOfRows = kTileRows / kWarpRows;
    constexpr int kWidth = kChunk * Format::kOfByte;
    GQC_SHARED(uint8_t, tiles, 2 * kStage);
    // The first half of the threads loads left, the second right.
    const bool is_left = threadIdx.x < kTileThreads;
    const int64_t along_k = is_left ? a_along_k : b_along_k, outer = is_left ? m : n;
    const Operand<Format> own(is_left ? a : b, along_k ? outer : k, along_k ? k : outer, is_left ? a_packed : b_packed,
                              along_k != 0);
    const int thread = static_cast<int>(threadIdx.x) % kTileThreads, tile = is_left ? 0 : kTile;
    const auto row_of_warp = [] { return thread_anew() / kWarp % kWarpsOfRows * kWarpRows; };
    const auto column_of_warp = [] { return thread_anew() / kWarp / kWarpsOfRows * kWarpColumns; };
    const auto row_of_sums = [&] { return static_cast<int64_t>(blockIdx.x) * kTileRows + row_of_warp(); };
    const auto column_of_sums = [&] { return static_cast<int64_t>(blockIdx.y) * kTileRows + column_of_warp(); };
    const int64_t first = blockIdx.z * part, last = first + part < k ? first + part : k;
    const bool works = row_of_sums() < m && column_of_sums() < n;

    WarpSums<Format> sums;
    sums.clear();
    TileShare<Format, kWhole> share(own, thread, static_cast<int64_t>(is_left ? blockIdx.x : blockIdx.y) * kTileRows,
                                    first, last);
    int chunks = static_cast<int>((last - first + kWidth - 1) / kWidth);
    share.load();
    share.store(tiles, chunks % 2 * kStage + tile, is_left);
#pragma unroll 1
    for (; chunks > 0; --chunks) {
        share.load();  // nothing after the last chunk
        __syncthreads();
        const int stage = chunks % 2 * kStage;
        if (works) {
            const int quads = stage + kTile + column_of_warp() * kChunk;
            sums.add(tiles, stage, row_of_warp(), [&](int group, int step) {
                return shared_load<uint4>(tiles, quads + place_of_quad(group, step, lane_id()));
            });
        }
        share.store(tiles, kStage - stage + tile, is_left);
    }
    if (!works) return;
    const int64_t j = column_of_sums() + sums.column_of_lane();
    const int count = count_of_eight(j, n);
    const bool vectors = n % 4 == 0 && count == kEight;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int64_t i = row_of_sums() + sums.row_of_lane(e);
        int32_t* out = parts + (blockIdx.z * m + i) * n + j;
#pragma unroll
        for (int of_lane = 0; of_lane < kWarpRows / 8; ++of_lane) {
            const auto sum = [&](int c) { return sums.at(of_lane, e, c); };
            if (i + 8 * of_lane < m && vectors) {
                global_store<int4>(out, make_int4(sum(0), sum(1), sum(2), sum(3)));
                global_store<int4>(out + 4, make_int4(sum(4), sum(5), sum(6), sum(7)));
            } else if (i + 8 * of_lane < m) {
#pragma unroll
                for (int c = 0; c < kEight; ++c)
                    if (c < count) out[c] = sum(c);
            }
            out += 8 * n;
        }
    }
}
