// The operands that the entries of a CSR or CSC matrix read.
#pragma once

#include "common/kernel.h"
#include "cpu/float24.h"
#include "cpu/graph/compressed.h"

namespace gqc::GQC_ISA {

// Entries between the one that is worked on and the one whose features are fetched into the cache.
constexpr int64_t kAhead = 12;

// As kAhead, for rows of `bytes`: as many as keep what a core can wait for at once filled.
inline int64_t entries_ahead(int64_t bytes) {
    return bytes <= 128 ? 32 : bytes <= 256 ? 20 : kAhead;
}

// Vectors of a row of T that share a cache line.
template <typename T>
constexpr int vectors_per_line(int lanes) {
    const int size = lanes * static_cast<int>(sizeof(T));
    return size < 64 ? 64 / size : 1;
}

// Features read by the entries of a matrix: entry p reads row rows[p] of data.
template <typename T, typename Index>
struct Operand {
    const T* data;
    const Index* rows;

    const T* row(int64_t p, int64_t width) const { return data + static_cast<int64_t>(rows[p]) * width; }
};

template <typename Index>
struct Operand<float24, Index> {
    const float24* data;
    const Index* rows;

    const float24* row(int64_t p, int64_t width) const { return row24(data, rows[p], width); }
};

}  // namespace gqc::GQC_ISA
