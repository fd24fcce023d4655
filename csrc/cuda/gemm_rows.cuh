// Product of a left operand of many rows with a right one that is packed once: blocks share the rows, and one block
// covers up to 256 columns, so that left is read from memory once.
//
// Right is packed in the order in which lanes take it (512 bytes in a run for a product of a warp), so it comes
// straight from the L1 cache, where it stays while a block goes through its rows, and shared memory is all left's.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile.cuh"

constexpr int kRowsThreads = 256;

// kColumns: 128 or 256 columns of a block. kAsync: left is int8 and its pieces are whole and aligned. right: quads,
// [chunks, slabs * kColumns * kChunk] bytes; m, n, k > 0.
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

    const Operand whole(a, m, k, kAsync ? 0 : a_packed, true);
    uint32_t seen = 0;
    const int width = static_cast<int>(k), chunks = (width + kChunk - 1) / kChunk;
    const int slabs = static_cast<int>((n + kColumns - 1) / kColumns);
    const int tiles = static_cast<int>((m + kRows - 1) / kRows) * slabs;
    const auto row_of_warp = [] { return thread_anew() / kWarp % kWarpsOfRows * kWarpRows; };
    const auto column_of_warp = [] { return thread_anew() / kWarp / kWarpsOfRows * kWarpColumns; };

    // What is fetched: this thread's pieces, of rows of_piece, of_piece + 64, ..
    const auto of_piece = [] { return thread_anew() / 4; };
    const auto byte_of_piece = [] { return thread_anew() % 4 * kPiece; };
    constexpr int kRowsOfPieces = kRowsThreads / 4;
    int next_tile = static_cast<int>(blockIdx.x), next_chunk = 0, rows_left = 0;
    const uint8_t* from = nullptr;
    const auto start_fetching = [&]() {
        const int64_t row = static_cast<int64_t>(next_tile / slabs) * kRows + of_piece();
        rows_left = next_tile < tiles ? left(m, row) : 0;
        from = whole.place(rows_left > 0 ? row : 0, byte_of_piece());
    };
    const auto go_on_fetching = [&]() {
        from += whole.packed ? kChunk / 2 : kChunk;
        if (++next_chunk < chunks) return;
        next_chunk = 0;
        next_tile += static_cast<int>(gridDim.x);
        start_fetching();
    };
    const auto width_left = [&]() { return width - next_chunk * kChunk - byte_of_piece(); };
    const auto place_of_piece = [&] { return place_of_row(of_piece()) + byte_of_piece(); };  // and each 64 rows later

    WarpSums sums;
    sums.clear();
    const uint32_t quads_of_chunk = static_cast<uint32_t>(slabs) * (kColumns * kChunk / kPiece);
    const auto multiply = [&](uint32_t quads, int stage) {
        sums.add(tiles_of_left, stage * kRows * kChunk, row_of_warp(), [&](int group, int step) {
            return global_load<uint4>(right + static_cast<int64_t>(quads) * kPiece +
                                      (group * 2 + step) * kWarp * kPiece);
        });
    };

    const auto write = [&](int tile) {
        const Epilogue epilogue(a_scale, b_scale, bias);
        const bool vectors = n % kEight == 0 && is_aligned(out, 16);
        const int of_rows = tile / slabs;
        const int column = (tile - of_rows * slabs) * kColumns + column_of_warp() + sums.column_of_lane();
        const int count = count_of_eight(column, n);
        float shift[kEight];
#pragma unroll
        for (int i = 0; i < kEight; ++i) shift[i] = i < count ? epilogue.bias_of(column + i) : 0.0f;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int64_t row = static_cast<int64_t>(of_rows) * kRows + row_of_warp() + sums.row_of_lane(e);
            const int rows = left(m, row);
            T* to = out + row * n + column;
#pragma unroll
            for (int of_lane = 0; of_lane < kWarpRows / 8; ++of_lane) {
                float y[kEight];
#pragma unroll
                for (int i = 0; i < kEight; ++i) y[i] = epilogue.value(sums.at(of_lane, e, i), shift[i]);
                if (of_lane * 8 < rows && count > 0) {
#pragma unroll
                    for (int i = 0; i < kEight; ++i)
                        if (i < count) seen = larger(seen, magnitude(y[i]));
                    store_eight(to, y, count, vectors);
                }
                to += 8 * n;
            }
        }
        sums.clear();
    };

    // By copies that run ahead, or through registers while the chunk before is multiplied.
    uint4 pieces[kOwn];
    const auto fetch = [&](int into) {
        if constexpr (kCopies) {
            if (next_tile < tiles) {
                const bool inside = width_left() > 0;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const bool copies = inside && i * kRowsOfPieces < rows_left;
                    copy_async(tiles_of_left, place_of_piece() + (into * kRows + i * kRowsOfPieces) * kChunk,
                               copies ? from + i * kRowsOfPieces * k : whole.values, copies);
                }
                go_on_fetching();
            }
            end_copies();
        } else {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int rows = rows_left - i * kRowsOfPieces;
                pieces[i] = make_uint4(0, 0, 0, 0);
                if (rows > 0 && width_left() > 0)
                    pieces[i] = load_piece(whole.values, from + i * kRowsOfPieces * whole.pitch(), width_left(),
                                           rows == 1, whole.packed, whole.vectors);
            }
            go_on_fetching();
        }
    };
    const auto put = [&](int into) {
        if constexpr (!kCopies) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                shared_store<uint4>(tiles_of_left, place_of_piece() + (into * kRows + i * kRowsOfPieces) * kChunk,
                                    pieces[i]);
        }
    };

    start_fetching();
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
    put(0);
    int stage = 0;
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const int column = tile % slabs * kColumns + column_of_warp();
        uint32_t quads = static_cast<uint32_t>(column) * (kChunk / kPiece) + lane_id();
        const bool works = column < n;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const int into = (stage + kStages - 1) % kStages;
            if constexpr (kCopies) {
                wait_for_copies<kStages - 2>();
                __syncthreads();
                fetch(into);
            } else {
                fetch(into);
                __syncthreads();
            }
            if (works) multiply(quads, stage);
            put(into);
            quads += quads_of_chunk;
            stage = (stage + 1) % kStages;
        }
        write(tile);
    }
    raise_absmax_of_rounded<T>(absmax, seen, scratch);
}
