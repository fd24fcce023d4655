// The tile registers of AMX: eight of 16 rows of 64 bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

constexpr int64_t kTileRows = 16, kTileBytes = 64;  // a row holds 64 int8 along k, or 16 int32

// Configures a thread's tiles and puts back what was there: other libraries keep a configuration of their own.
class Tiles {
  public:
    Tiles() {
        _tile_storeconfig(&before_);
        Config ours = {};
        ours.palette = 1;
        for (int tile = 0; tile < 8; ++tile) {
            ours.row_bytes[tile] = kTileBytes;
            ours.rows[tile] = kTileRows;
        }
        _tile_loadconfig(&ours);
    }
    ~Tiles() { _tile_loadconfig(&before_); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

  private:
    struct alignas(64) Config {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static_assert(sizeof(Config) == 64);

    Config before_;
};

// Tiles of left rows and of right columns as they lie in memory, with the bytes from one to the next.
struct TileWalk {
    const int8_t* first;
    int64_t row_stride;  // bytes between rows of a tile
    int64_t step;        // bytes from a tile to the one behind it along k
    int64_t neighbour;   // bytes to the tile below (left) or beside (right)
};

// sums += left . right for `two_rows ? 32 : 16` rows and `two_columns ? 32 : 16` columns. Tiles 0 to 3 hold the sums, 4
// and 5 left, 6 and 7 right.
template <bool two_rows, bool two_columns>
inline void add_tiles(TileWalk left, TileWalk right, int64_t steps, uint32_t* sums, int64_t sums_stride) {
    const int64_t stride = sums_stride * static_cast<int64_t>(sizeof *sums);
    uint32_t *const below = sums + kTileRows * sums_stride, *const beside = sums + kTileRows;
    _tile_loadd(0, sums, stride);
    if (two_columns) _tile_loadd(1, beside, stride);
    if (two_rows) _tile_loadd(2, below, stride);
    if (two_rows && two_columns) _tile_loadd(3, below + kTileRows, stride);
    const int8_t *l = left.first, *r = right.first;
    for (int64_t s = 0; s < steps; ++s, l += left.step, r += right.step) {
        _tile_loadd(4, l, left.row_stride);
        _tile_loadd(6, r, right.row_stride);
        _tile_dpbssd(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, r + right.neighbour, right.row_stride);
            _tile_dpbssd(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, l + left.neighbour, left.row_stride);
            _tile_dpbssd(2, 5, 6);
            if (two_columns) _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, sums, stride);
    if (two_columns) _tile_stored(1, beside, stride);
    if (two_rows) _tile_stored(2, below, stride);
    if (two_rows && two_columns) _tile_stored(3, below + kTileRows, stride);
}

// sums = left . right for 16 rows and 16 * `tiles` columns. Few rows at a time take little of the nearest cache.
template <int tiles>
inline void multiply_row_of_tiles(TileWalk left, TileWalk right, int64_t steps, uint32_t* sums, int64_t sums_stride) {
    static_assert(tiles >= 1 && tiles <= 4);
    const int64_t stride = sums_stride * static_cast<int64_t>(sizeof *sums), next = right.neighbour;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const int8_t *l = left.first, *r = right.first;
    for (int64_t s = 0; s < steps; ++s, l += left.step, r += right.step) {
        _tile_loadd(4, l, left.row_stride);
        _tile_loadd(5, r, right.row_stride);
        _tile_dpbssd(0, 4, 5);
        if constexpr (tiles > 1) {
            _tile_loadd(6, r + next, right.row_stride);
            _tile_dpbssd(1, 4, 6);
        }
        if constexpr (tiles > 2) {
            _tile_loadd(7, r + 2 * next, right.row_stride);
            _tile_dpbssd(2, 4, 7);
        }
        if constexpr (tiles > 3) {
            _tile_loadd(5, r + 3 * next, right.row_stride);
            _tile_dpbssd(3, 4, 5);
        }
    }
    _tile_stored(0, sums, stride);
    if constexpr (tiles > 1) _tile_stored(1, sums + kTileRows, stride);
    if constexpr (tiles > 2) _tile_stored(2, sums + 2 * kTileRows, stride);
    if constexpr (tiles > 3) _tile_stored(3, sums + 3 * kTileRows, stride);
}

inline void add_tiles(bool two_rows, bool two_columns, TileWalk left, TileWalk right, int64_t steps, uint32_t* sums,
                      int64_t sums_stride) {
    if (two_rows && two_columns)
        add_tiles<true, true>(left, right, steps, sums, sums_stride);
    else if (two_rows)
        add_tiles<true, false>(left, right, steps, sums, sums_stride);
    else if (two_columns)
        add_tiles<false, true>(left, right, steps, sums, sums_stride);
    else
        add_tiles<false, false>(left, right, steps, sums, sums_stride);
}

}  // namespace gqc::GQC_ISA
