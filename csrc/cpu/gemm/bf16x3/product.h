// Product of a float matrix with many rows in three products of bfloat16. Rows with values that cannot be split are
// multiplied in float32.
#pragma once

#include "common/buffer.h"
#include "cpu/gemm/amx/transpose.h"
#include "cpu/gemm/bf16x3/panel.h"
#include "cpu/gemm/floats/product.h"

namespace gqc::GQC_ISA {

class SplitProduct {
  public:
    // As FloatProduct.
    SplitProduct(Shape shape, const FloatMatrix& a, const float* b, bool trans_b)
        : shape_{shape.m, b ? shape.n : 0, b ? shape.k : 0},
          a_(a),
          b_(b),
          trans_b_(trans_b),
          steps_(round_up(shape_.k, kPanelStep) / kPanelStep),
          right_(round_up(shape_.n, kPanelWidth) / kPanelWidth * steps_ * kStepBytes) {
        if (ok()) pack();
    }

    bool ok() const { return right_.ok(); }
    bool exists() const { return b_ != nullptr; }
    const Shape& shape() const { return shape_; }

    // Splits the next rows while tiles multiply: the units that do work at the same time.
    class Worker {
      public:
        explicit Worker(const SplitProduct& product)
            : product_(product), strips_{Strip(product.left_bytes()), Strip(product.left_bytes())} {}
        bool ok() const { return strips_[0].panel.ok() && strips_[1].panel.ok() && !out_of_memory_; }

        // values[count, n] = rows i0 .. i0 + count.
        void multiply(int64_t i0, int64_t count, float* values) {
            const auto [m, n, k] = product_.shape_;
            for (int64_t r = 0; r < count; r += kPanelWidth) {
                const int64_t first = i0 + r, rows = count - r < kPanelWidth ? count - r : kPanelWidth;
                Strip &strip = strips_[at_], &next = strips_[1 - at_];
                if (strip.first != first || strip.rows != rows) strip.begin(first, rows);
                strip.split(product_, rows);
                if (strip.splitter.ok() && product_.splits_) {
                    next.begin(first + rows, m - first - rows < rows ? m - first - rows : rows);
                    multiply_strip(strip, &next, values + r * n);
                } else {
                    multiply_in_floats(first, rows, values + r * n);
                }
                at_ = 1 - at_;
            }
        }

      private:
        // Rows of left, of which the first `done` are split.
        struct Strip {
            explicit Strip(int64_t bytes) : panel(bytes) {
                if (panel.ok()) panel.clear();
            }

            void begin(int64_t from, int64_t count) {
                first = from;
                rows = count;
                done = 0;
                splitter = {};
            }
            void split(const SplitProduct& product, int64_t most) {
                const auto [m, n, k] = product.shape_;
                const int64_t end = done + most < rows ? done + most : rows;
                Splitter seen = splitter;
                const FloatMatrix& a = product.a_;
                for (; done < end; ++done) {
                    if (a.narrow)
                        split_row(a.narrow_row(first + done), k, done, panel.get(), &seen);
                    else
                        split_row(a.row(first + done), k, done, panel.get(), &seen);
                    if (first + done + kAhead < m) a.ask_for(first + done + kAhead, 1);
                }
                splitter = seen;
            }

            static constexpr int64_t kAhead = 48;  // rows that are asked for before they are split

            const Buffer<int8_t> panel;
            int64_t first = 0, rows = 0, done = 0;
            Splitter splitter;
        };

        void multiply_strip(const Strip& strip, Strip* next, float* values) const {
            const int64_t n = product_.shape_.n, steps = product_.steps_;
            const int64_t parts = round_up(n, kPanelWidth) / kPanelWidth * steps,
                          share = (next->rows + parts - 1) / parts;
            alignas(64) float scratch[kPanelWidth * kPanelWidth];
            for (int64_t j = 0; j < n; j += kPanelWidth) {
                const int64_t columns = n - j < kPanelWidth ? n - j : kPanelWidth;
                const bool whole = strip.rows % kTileRows == 0 && columns % kTileRows == 0;
                with_panel(strip.rows, columns, whole ? values + j : scratch, whole ? n : kPanelWidth, [&](auto sums) {
                    const int8_t *left = strip.panel.get(), *right = product_.panel(j);
                    sums.clear();
                    for (int64_t s = 0; s < steps; ++s, left += kStepBytes, right += kStepBytes) {
                        sums.add_step(left, right);
                        next->split(product_, share);
                    }
                    sums.store();
                });
                if (!whole) copy(scratch, strip.rows, columns, values + j);
            }
        }

        void copy(const float* panel, int64_t rows, int64_t columns, float* values) const {
            for (int64_t i = 0; i < rows; ++i, panel += kPanelWidth, values += product_.shape_.n) {
                for (int64_t v = 0; v < columns; v += kLanes)
                    store_part(values + v, load_floats(panel + v), columns - v < kLanes ? columns - v : kLanes);
            }
        }

        void multiply_in_floats(int64_t first, int64_t rows, float* values) {
            const FloatProduct product(product_.shape_, product_.a_, product_.b_, product_.trans_b_);
            const FloatProduct::Worker worker(product);
            if (product.ok() && worker.ok())
                worker.multiply(first, rows, values);
            else
                out_of_memory_ = true;
        }

        const Tiles tiles_;
        const SplitProduct& product_;
        Strip strips_[2];
        int at_ = 0;
        bool out_of_memory_ = false;
    };

  private:
    int64_t left_bytes() const { return exists() ? steps_ * kStepBytes : 0; }
    int8_t* panel(int64_t j) const { return &right_[j / kPanelWidth * steps_ * kStepBytes]; }

    void pack() {
        right_.clear();
        Splitter splitter;
        for (int64_t j = 0; j < shape_.n; j += kPanelWidth) {
            if (trans_b_)
                pack_rows(j, &splitter);
            else
                pack_columns(j, &splitter);
        }
        splits_ = splitter.ok();
    }

    // Of b: [n, k].
    void pack_rows(int64_t j, Splitter* splitter) const {
        const auto [m, n, k] = shape_;
        for (int64_t i = 0; i < kPanelWidth && j + i < n; ++i) split_row(b_ + (j + i) * k, k, i, panel(j), splitter);
        for (int64_t t = 0; t < steps_ * kStepBytes; t += kTileSize)
            transpose_words(panel(j) + t, kTileBytes, panel(j) + t);
    }

    // Of b: [k, n].
    void pack_columns(int64_t j, Splitter* splitter) const {
        const auto [m, n, k] = shape_;
        for (int64_t at = 0; at < k; ++at) {
            const int64_t line = at % kPanelStep;
            if (line >= kTileRows) continue;
            int8_t* const step = panel(j) + at / kPanelStep * kStepBytes;
            const float *const first = b_ + at * n, *const second = first + kTileRows * n;
            const bool two = at + kTileRows < k;
            for (int64_t i = 0; i < kPanelWidth && j + i < n; i += kTileRows) {
                const int64_t columns = n - j - i;
                const __m512 below = two ? load_first(second + j + i, columns) : _mm512_setzero_ps();
                store_halves(splitter->split(load_first(first + j + i, columns), below), words_at(step, i, line));
            }
        }
    }

    const Shape shape_;
    const FloatMatrix a_;
    const float* const b_;
    const bool trans_b_;
    const int64_t steps_;
    const Buffer<int8_t> right_;
    bool splits_ = false;
};

}  // namespace gqc::GQC_ISA
