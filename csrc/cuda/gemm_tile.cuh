// Tiles of a product in shared memory: rows of kChunk bytes along the contracted index, and the product of two tiles by
// a warp.
//
// A lane takes the 16 bytes t of a row at once and feeds them to two steps of mma_s8 as words t and 4 + t of each. So
// contracted indices meet in another order than they lie in, the same one for both operands, and a fragment of 8 rows
// is one run of 512 bytes: no two lanes want the same bank.
#pragma once

#include "cuda/gemm_operand.cuh"
#include "cuda/mma.cuh"

constexpr int kTileRows = 128;  // that kTileThreads load
constexpr int kTileThreads = 128;
constexpr int kPieces = kTileRows * kChunk / kPiece / kTileThreads;  // of a thread
static_assert(kPieces == 4, "a thread transposes blocks of 4 rows");

// Every other 16 rows have their odd and even rows swapped, so that lanes that write words of two such runs use
// different banks.
__device__ __forceinline__ int place_of_row(int row) {
    return (row ^ (row >> 4 & 1)) * kChunk;
}

// Rows 0..3 of 4 bytes become columns.
__device__ __forceinline__ void transpose_bytes(uint32_t (&v)[4]) {
    const uint32_t low01 = __byte_perm(v[0], v[1], 0x5140), high01 = __byte_perm(v[0], v[1], 0x7362);
    const uint32_t low23 = __byte_perm(v[2], v[3], 0x5140), high23 = __byte_perm(v[2], v[3], 0x7362);
    v[0] = __byte_perm(low01, low23, 0x5410), v[1] = __byte_perm(low01, low23, 0x7632);
    v[2] = __byte_perm(high01, high23, 0x5410), v[3] = __byte_perm(high01, high23, 0x7632);
}

// One thread's share of a tile of kTileRows rows on its way from global to shared memory.
struct TilePart {
    uint4 pieces[kPieces];

    // thread: 0 .. kTileThreads; the tile starts at row `row` and contracted index `k`.
    __device__ __forceinline__ void load(const Operand& x, int thread, int64_t row, int64_t k) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int piece = thread + i * kTileThreads;
            pieces[i] = x.along_k ? load_piece(x, row + piece / 4, k + piece % 4 * kPiece)
                                  : load_piece(x, k + thread % kPiece * 4 + i, row + thread / kPiece * kPiece);
        }
    }

    // into the tile at `start` of an array of bytes.
    template <typename Array>
    __device__ __forceinline__ void store(const Operand& x, int thread, Array& array, int start) const {
        if (x.along_k) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int piece = thread + i * kTileThreads;
                shared_store<uint4>(array, start + place_of_row(piece / 4) + piece % 4 * kPiece, pieces[i]);
            }
            return;
        }
        const int row = thread / kPiece * kPiece, k = thread % kPiece * 4;
        const auto store_columns = [&](int first, uint32_t k0, uint32_t k1, uint32_t k2, uint32_t k3) {
            uint32_t block[4] = {k0, k1, k2, k3};
            transpose_bytes(block);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                shared_store<uint32_t>(array, start + place_of_row(row + first + c) + k, block[c]);
        };
        store_columns(0, pieces[0].x, pieces[1].x, pieces[2].x, pieces[3].x);
        store_columns(4, pieces[0].y, pieces[1].y, pieces[2].y, pieces[3].y);
        store_columns(8, pieces[0].z, pieces[1].z, pieces[2].z, pieces[3].z);
        store_columns(12, pieces[0].w, pieces[1].w, pieces[2].w, pieces[3].w);
    }
};

// Sums of a warp: 32 rows and 64 columns, in fragments of mma_s8.
constexpr int kWarpRows = 32, kWarpColumns = 64;

struct WarpSums {
    int32_t values[kWarpRows / 16][kWarpColumns / 8][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& row : values)
#pragma unroll
            for (auto& fragment : row)
#pragma unroll
                for (int32_t& value : fragment) value = 0;
    }

    // Adds the product of a chunk. left: a tile at `start` of an array, of which the warp takes the rows from `row` on,
    // a multiple of 32; column(j): this lane's 16 bytes of columns 8 j .. 8 j + 7.
    template <typename Array, typename Columns>
    __device__ __forceinline__ void add(const Array& left, int start, int row, const Columns& column) {
        const int g = lane_id() / 4, at = lane_id() % 4 * kPiece;
        uint4 low[kWarpRows / 16], high[kWarpRows / 16];
#pragma unroll
        for (int i = 0; i < kWarpRows / 16; ++i) {
            low[i] = shared_load<uint4>(left, start + place_of_row(row + 16 * i + g) + at);
            high[i] = shared_load<uint4>(left, start + place_of_row(row + 16 * i + 8 + g) + at);
        }
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; ++j) {
            const uint4 right = column(j);
#pragma unroll
            for (int i = 0; i < kWarpRows / 16; ++i) {
                const uint32_t first[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
                const uint32_t second[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
                mma_s8(values[i][j], first, right.x, right.y);
                mma_s8(values[i][j], second, right.z, right.w);
            }
        }
    }
};
