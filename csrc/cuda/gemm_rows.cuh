// Product of a left operand of many rows with a right one that is packed once: blocks share the rows, and one block
// covers up to 256 columns, so that left is read from memory once.
//
// Right is packed in the order in which lanes take it (512 bytes in a run for a product of a warp), so it comes
// straight from the L1 cache, where it stays while a block goes through its rows, and shared memory is all left's.
#pragma once

#include "cuda/gemm_left.cuh"
#include "cuda/gemm_output.cuh"

// The warps of a block over a tile of its output.
template <int kOfBlock, int kRowsOfWarp>
struct Split {
    static constexpr int kColumns = kOfBlock, kWarpsOfColumns = kColumns / kWarpColumns;
    static constexpr int kWarpsOfRows = kRowsThreads / kWarp / kWarpsOfColumns, kRows = kWarpsOfRows * kRowsOfWarp;

    static __device__ __forceinline__ int row() { return thread_anew() / kWarp % kWarpsOfRows * kRowsOfWarp; }
    static __device__ __forceinline__ int column() { return thread_anew() / kWarp / kWarpsOfRows * kWarpColumns; }
    static __device__ __forceinline__ int slabs(int64_t n) { return static_cast<int>((n + kColumns - 1) / kColumns); }
    static __device__ __forceinline__ int tiles(int64_t m, int64_t n) {
        return static_cast<int>((m + kRows - 1) / kRows) * slabs(n);
    }
};

// The right operand as lanes take it: quads, [chunks, columns * kChunk] bytes for blocks of 128 columns along x and
// chunks along y, 0 where there is nothing. Lanes lie in the order of their numbers, not as place_of_quad has them.
template <typename Format>
__device__ __forceinline__ void pack_right(const Operand<Format>& right, int64_t columns, uint8_t* out) {
    GQC_SHARED(uint8_t, tile, kTileRows* kChunk);
    constexpr int kWidth = kChunk * Format::kOfByte;
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileRows, chunk = blockIdx.y;
    TileShare<Format, false> share(right, thread, column, chunk * kWidth, right.along_k ? right.width : right.lines);
    share.load();
    share.store(tile, 0, false);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int quad = thread + i * kTileThreads, step = quad / kWarp;
        const int from = place_of_quad(step / 2, step % 2, quad % kWarp);
        global_store<uint4>(out + ((chunk * columns + column) * kChunk + quad * kPiece),
                            shared_load<uint4>(tile, from));
    }
}

// right: what pack_right made; m, n, k > 0; last: what Output::raise is given, an absmax or a scale.
template <typename Format, typename Split, int kRowsOfWarp, typename Left, typename Output>
__device__ __forceinline__ void multiply_rows(Left& left, const uint8_t* right, int64_t m, int64_t n, int64_t k,
                                              const Output& output, float* last) {
    constexpr int kStages = Left::kStages;
    GQC_SHARED(uint8_t, tiles_of_left, kStages* Left::kStage);
    GQC_SHARED(uint32_t, scratch, kWarp);
    constexpr int kWidth = kChunk * Format::kOfByte;
    const int chunks = (static_cast<int>(k) + kWidth - 1) / kWidth;
    const int slabs = Split::slabs(n), tiles = Split::tiles(m, n);
    const uint32_t quads_of_chunk = static_cast<uint32_t>(slabs) * (Split::kColumns * kChunk / kPiece);

    uint32_t seen = 0;
    WarpSums<Format, kRowsOfWarp> sums;
    sums.clear();
    const auto multiply = [&](uint32_t quads, int start) {
        sums.add(tiles_of_left, start, Split::row(), [&](int group, int step) {
            return global_load<uint4>(right + static_cast<int64_t>(quads) * kPiece +
                                      (group * 2 + step) * kWarp * kPiece);
        });
    };

    // Copies run ahead of the loop; other lefts take a first turn of it in which nothing is multiplied.
    int stage = 0, chunk = Left::kCopies ? 0 : -Left::kChunks;
    if constexpr (Left::kCopies)
#pragma unroll
        for (int i = 0; i < kStages - 1; ++i) left.fetch(tiles_of_left, i);
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const int of_rows = tile / slabs, column = (tile - of_rows * slabs) * Split::kColumns + Split::column();
        uint32_t quads = static_cast<uint32_t>(column) * (kChunk / kPiece) + lane_id();
        const bool works = column < n;
#pragma unroll 1
        for (; chunk < chunks; chunk += Left::kChunks) {
            const int into = (stage + kStages - 1) % kStages;
            if constexpr (Left::kCopies) {
                wait_for_copies<kStages - 2>();
                __syncthreads();
                left.fetch(tiles_of_left, into);
            } else {
                left.fetch(tiles_of_left, into);
                __syncthreads();
            }
#pragma unroll 1
            for (int i = 0; i < Left::kChunks && chunk >= 0 && chunk + i < chunks; ++i) {
                const int start = stage * Left::kStage + i * (Split::kRows * kChunk);
                if (works) multiply(quads, start);
                left.store_copy(tiles_of_left, start, of_rows, chunk + i);
                quads += quads_of_chunk;
            }
            left.put(tiles_of_left, into);
            stage = (stage + 1) % kStages;
        }
        chunk = 0;
        output.write(sums, left.scale(), static_cast<int64_t>(of_rows) * Split::kRows + Split::row(), column, m, n,
                     seen);
        sums.clear();
    }
    output.raise(last, seen, scratch);
}
