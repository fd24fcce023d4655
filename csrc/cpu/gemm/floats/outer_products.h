// Sums of outer products of float rows.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/floats/multiply_add.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

// Rows of floats that lie in memory with a distance between.
struct FloatRows {
    const float* first;
    int64_t stride;
};

// A thread's sums of outer products of rows of m and of n floats.
class OuterProducts {
  public:
    static constexpr int64_t kMost = 32;  // pairs of rows that are added at a time: they stay in L1
    static constexpr int64_t kBehindLeft = kRows, kBehindRight = kLanes;  // what is read behind rows, at most

    OuterProducts(int64_t m, int64_t n)
        : m_(m),
          n_(n),
          m_packed_(round_up(m, kRows)),
          n_packed_(round_up(n, kLanes)),
          left_(kMost * m_packed_),
          right_(kMost * n_packed_),
          sums_(m_packed_ * n_packed_) {
        if (!ok()) return;
        left_.clear();
        right_.clear();
        clear();
    }

    bool ok() const { return left_.ok() && right_.ok() && sums_.ok(); }
    void clear() const { sums_.clear(); }

    // Where the caller may put row e of each side.
    float* left(int64_t e) const { return &left_[e * m_packed_]; }
    float* right(int64_t e) const { return &right_[e * n_packed_]; }
    FloatRows left_rows() const { return {left_.get(), m_packed_}; }
    FloatRows right_rows() const { return {right_.get(), n_packed_}; }

    // Adds the products of `count` rows, in their order. Calls step() some times while it computes. Reads floats behind
    // each row, whatever they are.
    template <typename Step>
    void add(const FloatRows& left, const FloatRows& right, int64_t count, const Step& step) const {
        for (int64_t j0 = 0; j0 < n_; j0 += kColumns) {
            with_vectors(Panel(n_, j0).vectors, [&](auto vectors) {
                for (int64_t i0 = 0; i0 < m_; i0 += kRows) {
                    step();
                    add_tile<vectors>(left, right, i0, j0, count);
                }
            });
        }
    }
    int64_t steps() const { return round_up(n_, kColumns) / kColumns * (m_packed_ / kRows); }

    // Cycles that a pair of rows takes at two vectors of products a cycle, each of which waits four for the one before.
    static int64_t cycles(int64_t m, int64_t n) {
        int64_t of_row_tile = 0;
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
            const int64_t products = Panel(n, j0).vectors * kRows / 2;
            of_row_tile += products < 4 ? 4 : products;
        }
        return round_up(m, kRows) / kRows * of_row_tile;
    }

    // n sums of row i.
    const float* sums(int64_t i) const { return &sums_[i * n_packed_]; }

  private:
    template <int vectors>
    void add_tile(const FloatRows& left_rows, const FloatRows& right_rows, int64_t i0, int64_t j0,
                  int64_t count) const {
        float* to = &sums_[i0 * n_packed_ + j0];
        const float *left = left_rows.first + i0, *right = right_rows.first + j0;
        const int64_t left_stride = left_rows.stride, right_stride = right_rows.stride;
        Floats tile[kRows][vectors];
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) tile[r][v] = load_floats(to + r * n_packed_ + v * kLanes);
        for (int64_t e = 0; e < count; ++e, left += left_stride, right += right_stride) {
            Floats columns[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) columns[v] = load_floats(right + v * kLanes);
#pragma GCC unroll 6
            for (int r = 0; r < kRows; ++r) {
                const Floats value = broadcast(left[r]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) tile[r][v] = multiply_add(value, columns[v], tile[r][v]);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) store_floats(to + r * n_packed_ + v * kLanes, tile[r][v]);
    }

    int64_t m_, n_, m_packed_, n_packed_;
    Buffer<float> left_, right_, sums_;
};

}  // namespace gqc::GQC_ISA
