// From the sums of a product to the values of a block of rows.
#pragma once

#include <cstdint>

#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/shape.h"
#include "cpu/gemm/vector.h"

namespace gqc::GQC_ISA {

// Largest magnitudes lane by lane, so that no row needs a horizontal maximum.
struct Largest {
    Sums lanes = {};

    void raise(Floats y) {
        const Sums m = magnitudes(y);
        lanes = m > lanes ? m : lanes;
    }
    uint32_t over_lanes() const {
        uint32_t result = 0;
        for (int lane = 0; lane < kLanes; ++lane) result = lanes[lane] > result ? lanes[lane] : result;
        return result;
    }
};

// Columns of a panel in some rows, of which the first is row i of the product.
struct Piece {
    int64_t i, rows, j0, columns;
};

// values[r][j] = the value of sum_of(r, v)[lane] for columns j = v * kLanes + lane, in rows of n values.
template <bool collects, bool finds_largest, bool full, int vectors, typename SumOf>
inline void finish_panel(const Piece piece, const Epilogue epilogue, int64_t n, float* values, Largest* largest,
                         const SumOf& sum_of) {
    const int64_t last = piece.columns - (vectors - 1) * kLanes;
    const Sums kept = full ? Sums{} : first_lanes(last);
    Largest seen = *largest;
    for (int64_t r = 0; r < piece.rows; ++r, values += n) {
        Floats y[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) y[v] = sum_of(r, v);
        epilogue.apply(y, piece.i + r, piece.j0);
        if (!full) y[vectors - 1] = (Floats)((Sums)y[vectors - 1] & kept);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            if (finds_largest) seen.raise(y[v]);
            if (!collects) continue;
            if (full || v + 1 < vectors)
                store_floats(values + v * kLanes, y[v]);
            else
                store_part(values + v * kLanes, y[v], last);
        }
    }
    *largest = seen;
}

// For panels that fill their vectors and for those that do not.
template <bool collects, bool finds_largest, int vectors, typename SumOf>
inline void finish_panel(const Piece& piece, const Epilogue& epilogue, int64_t n, float* values, Largest* largest,
                         const SumOf& sum_of) {
    if (piece.columns == vectors * kLanes)
        finish_panel<collects, finds_largest, true, vectors>(piece, epilogue, n, values, largest, sum_of);
    else
        finish_panel<collects, finds_largest, false, vectors>(piece, epilogue, n, values, largest, sum_of);
}

}  // namespace gqc::GQC_ISA
