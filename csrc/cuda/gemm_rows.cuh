// Product of a left operand of many rows with a right one that is packed once: blocks share the rows, and one block
// covers up to 256 columns, so that left is read from memory once.
//
// Right is packed in the order in which lanes take it (512 bytes in a run for 8 columns and a chunk), so it comes
// straight from the L1 cache, where it stays while a block goes through its rows, and shared memory is all left's.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile.cuh"

constexpr int kRowsThreads = 256;

// Column of a group of 32 whose bytes lie in row `row` of the group's packed rows. A lane's sums of four fragments are
// then 8 neighbouring columns.
__device__ __forceinline__ int packed_column(int row) {
    return row % 8 / 2 * 8 + row / 8 * 2 + row % 2;
}

// A chunk of a tile of rows of left.
struct RowsStep {
    int64_t tile;
    int64_t row, slab;  // of the tile: its first row, its slab of columns
    int chunk = 0;

    __device__ __forceinline__ RowsStep(int rows, int64_t slabs) : tile(blockIdx.x) { find(rows, slabs); }

    __device__ __forceinline__ void advance(int chunks, int rows, int64_t slabs) {
        if (++chunk < chunks) return;
        chunk = 0;
        tile += gridDim.x;
        find(rows, slabs);
    }

  private:
    __device__ __forceinline__ void find(int rows, int64_t slabs) {
        const int64_t of_rows = slabs == 1 ? tile : tile / slabs;
        row = of_rows * rows;
        slab = tile - of_rows * slabs;
    }
};

// kColumns: 128 or 256 columns of a block. kAsync: left is int8 and its pieces are whole and aligned. right: packed,
// [chunks, slabs * kColumns, kChunk] bytes; m, n, k > 0.
template <int kColumns, bool kAsync, typename T>
__device__ __forceinline__ void multiply_rows(const void* a, int64_t a_packed, const uint8_t* right, int64_t m,
                                              int64_t n, int64_t k, const float* a_scale, const float* b_scale,
                                              const float* bias, T* out, float* absmax) {
    constexpr bool kCopies = kAsync && kAsyncCopies;
    constexpr int kWarpsOfColumns = kColumns / kWarpColumns, kWarpsOfRows = kRowsThreads / kWarp / kWarpsOfColumns;
    constexpr int kRows = kWarpsOfRows * kWarpRows, kStages = kCopies ? 4 : 2;
    constexpr int kOwn = kRows * kChunk / kPiece / kRowsThreads;  // pieces of a thread
    GQC_SHARED(uint8_t, tiles_of_left, kStages * kRows * kChunk);
    GQC_SHARED(uint32_t, scratch, kWarp);

    const Operand left(a, m, k, a_packed, true);
    Epilogue<T> epilogue(a_scale, b_scale, bias, out, m, n);
    const int chunks = static_cast<int>((k + kChunk - 1) / kChunk);
    const int64_t slabs = (n + kColumns - 1) / kColumns, tiles = (m + kRows - 1) / kRows * slabs;
    const int row_of_warp = warp_id() % kWarpsOfRows * kWarpRows;
    const int column_of_warp = warp_id() / kWarpsOfRows * kWarpColumns;
    WarpSums sums;
    sums.clear();

    const auto row_of_piece = [](int i) { return (static_cast<int>(threadIdx.x) + i * kRowsThreads) / 4; };
    const int byte_of_piece = static_cast<int>(threadIdx.x) % 4 * kPiece;
    const auto place_of_piece = [&](int stage, int i) {
        return stage * kRows * kChunk + place_of_row(row_of_piece(i)) + byte_of_piece;
    };

    const auto multiply = [&](const RowsStep& step, int stage) {
        const int64_t column = step.slab * kColumns + column_of_warp;
        if (column >= n) return;
        const uint8_t* from = right + (step.chunk * slabs * kColumns + column) * kChunk + lane_id() * kPiece;
        sums.add(tiles_of_left, stage * kRows * kChunk, row_of_warp,
                 [&](int j) { return global_load<uint4>(from + j * 8 * kChunk); });
    };

    const auto write = [&](const RowsStep& step) {
#pragma unroll
        for (int group = 0; group < kWarpColumns / 32; ++group) {
            const int64_t column = step.slab * kColumns + column_of_warp + group * 32 + lane_id() % 4 * kEight;
            if (column >= n) continue;
            const int count = count_of_eight(column, n);
            float shift[kEight];
            if (bias) load_eight(bias + column, count, false, shift);
#pragma unroll
            for (int of_lane = 0; of_lane < kWarpRows / 8; ++of_lane) {
                const int64_t row = step.row + row_of_warp + of_lane * 8 + lane_id() / 4;
                if (row >= m) continue;
                float y[kEight];
#pragma unroll
                for (int i = 0; i < kEight; ++i) {
                    const int32_t sum = sums.values[of_lane / 2][group * 4 + i / 2][of_lane % 2 * 2 + i % 2];
                    y[i] = epilogue.value(sum, shift[i]);
                    if (i < count) epilogue.saw(y[i]);
                }
                store_eight(out + row * n + column, y, count, epilogue.vectors);
            }
        }
        sums.clear();
    };

    RowsStep next(kRows, slabs);
    int stage = 0;
    if constexpr (kCopies) {
        const auto fetch = [&](int into) {
            if (next.tile < tiles) {
                const int64_t at = static_cast<int64_t>(next.chunk) * kChunk + byte_of_piece;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const int64_t row = next.row + row_of_piece(i);
                    const bool inside = row < m && at < k;
                    copy_async(tiles_of_left, place_of_piece(into, i), left.values + (inside ? row * k + at : 0),
                               inside);
                }
                next.advance(chunks, kRows, slabs);
            }
            end_copies();
        };
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) fetch(i);
        for (RowsStep step(kRows, slabs); step.tile < tiles; step.advance(chunks, kRows, slabs)) {
            wait_for_copies<kStages - 2>();
            __syncthreads();
            fetch((stage + kStages - 1) % kStages);
            multiply(step, stage);
            if (step.chunk == chunks - 1) write(step);
            stage = (stage + 1) % kStages;
        }
    } else {
        uint4 pieces[kOwn];
        const auto fetch = [&]() {
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                pieces[i] = load_piece(left, next.row + row_of_piece(i),
                                       static_cast<int64_t>(next.chunk) * kChunk + byte_of_piece);
            next.advance(chunks, kRows, slabs);
        };
        const auto put = [&](int into) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) shared_store<uint4>(tiles_of_left, place_of_piece(into, i), pieces[i]);
        };
        fetch();
        put(stage);
        for (RowsStep step(kRows, slabs); step.tile < tiles; step.advance(chunks, kRows, slabs)) {
            fetch();
            __syncthreads();
            multiply(step, stage);
            stage ^= 1;
            put(stage);
            if (step.chunk == chunks - 1) write(step);
        }
    }
    epilogue.finish(absmax, scratch);
}
