// Rows of values of 1, 2 or 4 bits to and from packed bytes (common/bits.h), at the speed of memory.

#include "common/bits.h"
#include "common/kernel.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kPiece = 16384;  // values that a thread takes at a time: whole rows, or a part of one

inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Calls f(row, column, values, spare) for parts of rows; spare: another row follows that the same thread takes next, so
// that a part may be read or written up to a word beyond its end.
template <typename F>
void for_parts(int64_t threads, int64_t rows, int64_t width, F f) {
    const int64_t row_step = width < kPiece ? kPiece / width : 1;
#pragma omp parallel for collapse(2) num_threads(team(threads, rows* width)) schedule(static)
    for (int64_t r0 = 0; r0 < rows; r0 += row_step)
        for (int64_t column = 0; column < width; column += kPiece) {
            const int64_t r1 = smaller(r0 + row_step, rows), count = smaller(kPiece, width - column);
            for (int64_t r = r0; r < r1; ++r) f(r, column, count, r + 1 < r1);
        }
}

template <int bits>
void pack(int64_t threads, const uint8_t* values, int64_t rows, int64_t width, uint8_t* packed) {
    const int64_t bytes = packed_bytes(width, bits);
    for_parts(threads, rows, width, [=](int64_t row, int64_t column, int64_t count, bool spare) {
        pack_bits<bits>(values + row * width + column, count, packed + row * bytes + column * bits / 8, spare);
    });
}

template <int bits>
void unpack(int64_t threads, const uint8_t* packed, int64_t rows, int64_t width, uint8_t* values) {
    const int64_t bytes = packed_bytes(width, bits);
    for_parts(threads, rows, width, [=](int64_t row, int64_t column, int64_t count, bool spare) {
        unpack_bits<bits>(packed + row * bytes + column * bits / 8, count, values + row * width + column, spare);
    });
}

}  // namespace

// values: [rows, width] bytes, of which the low 1, 2 or 4 bits count; packed: [rows, packed_bytes(width, bits)] bytes.
// rows, width > 0; rows that end with a byte may be given as one.
GQC_KERNEL(pack_bits)(int64_t threads, const uint8_t* values, int64_t rows, int64_t width, int64_t bits,
                      uint8_t* packed) {
    if (bits == 1)
        pack<1>(threads, values, rows, width, packed);
    else if (bits == 2)
        pack<2>(threads, values, rows, width, packed);
    else
        pack<4>(threads, values, rows, width, packed);
    return nullptr;
}

GQC_KERNEL(unpack_bits)(int64_t threads, const uint8_t* packed, int64_t rows, int64_t width, int64_t bits,
                        uint8_t* values) {
    if (bits == 1)
        unpack<1>(threads, packed, rows, width, values);
    else if (bits == 2)
        unpack<2>(threads, packed, rows, width, values);
    else
        unpack<4>(threads, packed, rows, width, values);
    return nullptr;
}

}  // namespace gqc::GQC_ISA
