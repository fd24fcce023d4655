// Product of a float matrix with many rows: right is packed once and stays in cache.
#pragma once

#include "common/buffer.h"
#include "cpu/gemm/floats/matrix.h"
#include "cpu/gemm/floats/multiply_add.h"
#include "cpu/gemm/floats/stack.h"

namespace gqc::GQC_ISA {

// to[r] = left[r] . right for the first `count` of kRows rows, in rows of n floats; of the last vector the first
// `last`. Calls step() some times while it computes.
template <int vectors, typename Step>
inline void multiply_rows(const float* const (&left)[kRows], const float* right, int64_t k, int64_t count, int64_t last,
                          float* to, int64_t n, const Step& step) {
    Floats tile[kRows][vectors] = {};
    add_products<vectors>(left, right, k, tile, step);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
        if (r == count) return;
#pragma GCC unroll 4
        for (int v = 0; v + 1 < vectors; ++v) store_floats(to + r * n + v * kLanes, tile[r][v]);
        store_part(to + r * n + (vectors - 1) * kLanes, tile[r][vectors - 1], last);
    }
}

class FloatProduct {
  public:
    // a: [m, k]; b: [k, n], or [n, k] where trans_b, or null: there is no product.
    FloatProduct(Shape shape, const FloatMatrix& a, const float* b, bool trans_b)
        : shape_{shape.m, b ? shape.n : 0, b ? shape.k : 0}, exists_(b != nullptr), a_(a), right_(shape_, b, trans_b) {}

    bool ok() const { return right_.ok(); }
    bool exists() const { return exists_; }
    const Shape& shape() const { return shape_; }

    // What a thread works with.
    class Worker {
      public:
        explicit Worker(const FloatProduct& product)
            : product_(product), wide_(product.a_.narrow ? kRows * product.shape_.k : 0) {}
        bool ok() const { return wide_.ok(); }

        // values[count, n] = rows i0 .. i0 + count; each is one float32 sum in order of k.
        void multiply(int64_t i0, int64_t count, float* values) const {
            const auto [m, n, k] = product_.shape_;
            const int64_t behind = m - i0 - count;
            for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
                const Panel panel(n, j0);
                with_vectors(panel.vectors, [&](auto vectors) {
                    const int64_t last = panel.columns - (vectors - 1) * kLanes;
                    for (int64_t r = 0; r < count; r += kRows) {
                        const int64_t rows = count - r < kRows ? count - r : kRows;
                        // What the next block reads, as much as is computed with at a time.
                        const int64_t left = j0 > 0 || behind < r ? 0 : behind - r;
                        Ahead ahead(product_.a_, i0 + count + r, left < kRows ? left : kRows, steps_of(k));
                        const float* row[kRows];
                        read(i0 + r, rows, row);
                        multiply_rows<vectors>(row, product_.right_.panel(0, j0), k, rows, last, values + r * n + j0, n,
                                               [&] { ahead.ask(); });
                    }
                });
            }
        }

      private:
        void read(int64_t first, int64_t rows, const float* (&row)[kRows]) const {
            const FloatMatrix& a = product_.a_;
            for (int64_t i = 0; i < kRows; ++i) {
                const int64_t at = i < rows ? i : 0;
                row[i] = a.narrow ? &wide_[at * a.width] : a.row(first + at);
                if (a.narrow && i < rows) a.load(first + i, &wide_[i * a.width]);
            }
        }

        const FloatProduct& product_;
        const Buffer<float> wide_;
    };

  private:
    const Shape shape_;
    const bool exists_;
    const FloatMatrix a_;
    const FloatStack right_;
};

}  // namespace gqc::GQC_ISA
