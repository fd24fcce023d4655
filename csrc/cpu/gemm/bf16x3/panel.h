// Products of panels of split floats in AMX tiles.
//
// A panel is up to 32 rows of left or columns of right along the contracted index, 32 indices a step. A step of it is
// four tiles: the high parts of its first 16 rows or columns, of the other 16, and the low parts of both.
#pragma once

#include <cstdint>

#include "cpu/gemm/amx/tiles.h"
#include "cpu/gemm/bf16x3/split.h"

namespace gqc::GQC_ISA {

constexpr int64_t kPanelWidth = 2 * kTileRows, kPanelStep = 32;
constexpr int64_t kTileSize = kTileRows * kTileBytes, kLowParts = 2 * kTileSize, kStepBytes = 2 * kLowParts;

// Where 16 words of a panel's step lie: row `line` of the tile that holds row or column j.
inline int8_t* words_at(int8_t* step, int64_t j, int64_t line) {
    return step + j / kTileRows * kTileSize + line * kTileBytes;
}

inline void store_halves(const Halves& halves, int8_t* words) {
    _mm512_store_si512(words, halves.high);
    _mm512_store_si512(words + kLowParts, halves.low);
}

// A row of `count` elements along the contracted index as row i of a panel: index s * 32 + j shares a word with 16
// more.
template <typename T>
inline void split_row(const T* row, int64_t count, int64_t i, int8_t* panel, Splitter* splitter) {
    int8_t* to = words_at(panel, i, i % kTileRows);
    int64_t k = 0;
    for (; k + kPanelStep <= count; k += kPanelStep, to += kStepBytes)
        store_halves(splitter->split(load_sixteen(row + k), load_sixteen(row + k + kTileRows)), to);
    if (k == count) return;
    const int64_t rest = count - k;
    store_halves(splitter->split(load_first(row + k, rest), load_first(row + k + kTileRows, rest - kTileRows)), to);
}

// Sums of products in tiles 0 to 3: of 32 or, unless two_rows, 16 rows, and as many columns. Tiles 4 and 5 hold left, 6
// and 7 right.
template <bool two_rows, bool two_columns>
struct PanelSums {
    float* sums;
    int64_t row;  // floats from one to the next

    void clear() const {
        _tile_zero(0);
        if (two_columns) _tile_zero(1);
        if (two_rows) _tile_zero(2);
        if (two_rows && two_columns) _tile_zero(3);
    }
    void load() const {
        _tile_loadd(0, sums, stride());
        if (two_columns) _tile_loadd(1, sums + kTileRows, stride());
        if (two_rows) _tile_loadd(2, below(), stride());
        if (two_rows && two_columns) _tile_loadd(3, below() + kTileRows, stride());
    }
    void store() const {
        _tile_stored(0, sums, stride());
        if (two_columns) _tile_stored(1, sums + kTileRows, stride());
        if (two_rows) _tile_stored(2, below(), stride());
        if (two_rows && two_columns) _tile_stored(3, below() + kTileRows, stride());
    }

    static void add_step(const int8_t* left, const int8_t* right) {
        load_left(left);
        load_right(right + kLowParts);
        add();
        load_right(right);
        add();
        load_left(left + kLowParts);
        add();
    }

  private:
    int64_t stride() const { return row * static_cast<int64_t>(sizeof *sums); }
    float* below() const { return sums + kTileRows * row; }

    static void load_left(const int8_t* tiles) {
        _tile_loadd(4, tiles, kTileBytes);
        if (two_rows) _tile_loadd(5, tiles + kTileSize, kTileBytes);
    }
    static void load_right(const int8_t* tiles) {
        _tile_loadd(6, tiles, kTileBytes);
        if (two_columns) _tile_loadd(7, tiles + kTileSize, kTileBytes);
    }
    static void add() {
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) _tile_dpbf16ps(1, 4, 7);
        if (two_rows) _tile_dpbf16ps(2, 5, 6);
        if (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
    }
};

// Calls f(PanelSums) for a panel of this many rows and columns.
template <typename F>
inline void with_panel(int64_t rows, int64_t columns, float* sums, int64_t row, const F& f) {
    if (rows > kTileRows && columns > kTileRows)
        f(PanelSums<true, true>{sums, row});
    else if (rows > kTileRows)
        f(PanelSums<true, false>{sums, row});
    else if (columns > kTileRows)
        f(PanelSums<false, true>{sums, row});
    else
        f(PanelSums<false, false>{sums, row});
}

}  // namespace gqc::GQC_ISA
