// The values of a block of rows of a product.
#pragma once

#include <cstdint>

#include "cpu/gemm/block.h"
#include "cpu/gemm/values.h"

namespace gqc::GQC_ISA {

// values[count, n] = what follows the sums of rows i0 .. i0 + count, which `block` has loaded.
template <bool collects, bool finds_largest>
void multiply_block(const LeftBlock& block, const PackedRight& packed, int64_t n, const Epilogue& epilogue, int64_t i0,
                    int64_t count, float* values, Largest* seen) {
    alignas(64) uint32_t apart[kStripRows * kColumns];
    for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
        const Panel panel(n, j0);
        with_vectors(panel.vectors, [&](auto vectors) {
            for (int64_t r = 0; r < count; r += kStripRows) {
                const Piece piece{i0 + r, count - r < kStripRows ? count - r : kStripRows, j0, panel.columns};
                float* const out = values + r * n + j0;
                // Whole pieces are added up where their values go: one place less in the nearest cache.
                const bool in_place = collects && piece.rows == kStripRows && piece.columns == vectors * kLanes;
                uint32_t* const sums = in_place ? reinterpret_cast<uint32_t*>(out) : apart;
                const int64_t stride = in_place ? n : kColumns;
                block.template multiply<vectors>(packed, j0, r, piece.rows, sums, stride);
                finish_panel<collects, finds_largest, vectors>(piece, epilogue, n, out, seen, [&](int64_t row, int v) {
                    return __builtin_convertvector((Ints)load_sums(sums + row * stride + v * kLanes), Floats);
                });
            }
        });
    }
}

}  // namespace gqc::GQC_ISA
