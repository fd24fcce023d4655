// A thread's share of a float product with a long contraction, in three products of bfloat16.
#pragma once

#include "cpu/gemm/amx/transpose.h"
#include "cpu/gemm/bf16x3/panel.h"
#include "cpu/gemm/floats/contraction.h"

namespace gqc::GQC_ISA {

// Panels of one operand of a contraction: two contracted rows of floats share words.
class SplitLines {
  public:
    SplitLines(int64_t width, int64_t most_rows)
        : width_(width),
          panel_bytes_(most_rows / kPanelStep * kStepBytes),
          panels_(round_up(width, kPanelWidth) / kPanelWidth * panel_bytes_),
          zeros_(width) {
        if (!ok()) return;
        panels_.clear();
        zeros_.clear();
    }

    bool ok() const { return panels_.ok() && zeros_.ok(); }
    const int8_t* panel(int64_t j) const { return &panels_[j / kPanelWidth * panel_bytes_]; }

    // Rows 2 * pair and 2 * pair + 1 of the `count` rows from `first` on, with zeros behind them, as columns of right.
    void split_pair(const FloatLines& lines, int64_t first, int64_t count, int64_t pair, Splitter* splitter) const {
        const Row even = row(lines, first, count, 2 * pair), odd = row(lines, first, count, 2 * pair + 1);
        if (lines.narrow)
            split<float24>(even, odd, lines.factors != nullptr, pair, splitter);
        else
            split<float>(even, odd, lines.factors != nullptr, pair, splitter);
    }

    // Turns columns of right into rows of left, for 16 pairs at a time.
    void transpose(int64_t step) const {
        for (int64_t j = 0; j < width_; j += kTileRows) {
            int8_t* const high = words_at(step_of(j, step), j % kPanelWidth, 0);
            transpose_words(high, kTileBytes, high);
            transpose_words(high + kLowParts, kTileBytes, high + kLowParts);
        }
    }

  private:
    struct Row {
        const void* values;
        float factor;
    };
    Row row(const FloatLines& lines, int64_t first, int64_t count, int64_t at) const {
        if (at >= count) return {zeros_.get(), 0};
        return {lines.bytes(first + at), lines.factors ? lines.factors[first + at] : 1};
    }

    template <typename T>
    void split(const Row& even, const Row& odd, bool scaled, int64_t pair, Splitter* splitter) const {
        if (scaled)
            split<true>(static_cast<const T*>(even.values), static_cast<const T*>(odd.values), even.factor, odd.factor,
                        pair, splitter);
        else
            split<false>(static_cast<const T*>(even.values), static_cast<const T*>(odd.values), 1, 1, pair, splitter);
    }

    template <bool scaled, typename T>
    void split(const T* even, const T* odd, float even_scale, float odd_scale, int64_t pair, Splitter* splitter) const {
        const __m512 even_factor = _mm512_set1_ps(even_scale), odd_factor = _mm512_set1_ps(odd_scale);
        const auto store = [&](__m512 x, __m512 y, int64_t j) {
            if (scaled) x *= even_factor, y *= odd_factor;
            int8_t* const step = step_of(j, pair / kTileRows);
            store_halves(splitter->split(x, y), words_at(step, j % kPanelWidth, pair % kTileRows));
        };
        int64_t j = 0;
        for (; j + kTileRows <= width_; j += kTileRows) store(load_sixteen(even + j), load_sixteen(odd + j), j);
        if (j < width_) store(load_first(even + j, width_ - j), load_first(odd + j, width_ - j), j);
    }

    int8_t* step_of(int64_t j, int64_t step) const {
        return &panels_[j / kPanelWidth * panel_bytes_ + step * kStepBytes];
    }

    const int64_t width_, panel_bytes_;
    const Buffer<int8_t> panels_;
    const Buffer<float> zeros_;  // a row
};

// As FloatPart. Rows with values that cannot be split are added in float32. The next rows are split while tiles
// multiply: the units that do work at the same time.
class SplitPart {
  public:
    SplitPart(int64_t m, int64_t n)
        : m_packed_(round_up(m, kPanelWidth)),
          n_packed_(round_up(n, kPanelWidth)),
          most_rows_(rows_of_chunk(m_packed_ + n_packed_)),
          chunks_{Chunk(m, n, most_rows_), Chunk(m, n, most_rows_)},
          sums_(m_packed_ * n_packed_),
          in_floats_(m, n) {
        if (sums_.ok()) sums_.clear();
    }

    bool ok() const { return chunks_[0].ok() && chunks_[1].ok() && sums_.ok() && in_floats_.ok(); }

    // The left rows are transposed: the shorter ones.
    static bool swaps(int64_t m, int64_t n) { return n < m; }

    void add(const FloatLines& left, const FloatLines& right, int64_t first, int64_t end, double* total) {
        int64_t held = 0;
        chunks_[0].begin(first, end, most_rows_);
        for (int64_t row = first, at = 0; row < end; row += most_rows_, at = 1 - at) {
            Chunk &chunk = chunks_[at], &next = chunks_[1 - at];
            chunk.split(left, right, chunk.pairs());
            next.begin(row + chunk.count, end, most_rows_);
            if (chunk.splitter.ok()) {
                multiply(chunk, left.width, right.width, [&](int64_t share) { next.split(left, right, share); });
                held += chunk.count;
            } else {
                in_floats_.add(left, right, row, row + chunk.count, total);
            }
            if (held < kInTiles && next.count > 0) continue;
            for (int64_t i = 0; i < left.width; ++i)
                for (int64_t j = 0; j < right.width; ++j) total[i * right.width + j] += sums_[i * n_packed_ + j];
            sums_.clear();
            held = 0;
        }
    }

  private:
    static constexpr int64_t kInTiles = 2048;  // products whose sum is float32: what it rounds is small beside 2^-15

    // Rows of both operands, of which the first `done` pairs are split.
    struct Chunk {
        Chunk(int64_t m, int64_t n, int64_t most_rows) : left(m, most_rows), right(n, most_rows) {}

        bool ok() const { return left.ok() && right.ok(); }
        int64_t steps() const { return round_up(count, kPanelStep) / kPanelStep; }
        int64_t pairs() const { return steps() * kTileRows; }

        void begin(int64_t from, int64_t end, int64_t most) {
            first = from;
            count = end - from < most ? end - from : most;
            behind = end - from - count;
            done = 0;
            splitter = {};
        }

        void split(const FloatLines& a, const FloatLines& b, int64_t most) {
            const int64_t end = done + most < pairs() ? done + most : pairs();
            Splitter seen = splitter;
            for (; done < end; ++done) {
                left.split_pair(a, first, count, done, &seen);
                right.split_pair(b, first, count, done, &seen);
                if ((done + 1) % kTileRows == 0) left.transpose(done / kTileRows);
                ask_for(a, 2 * done + kAhead);
                ask_for(b, 2 * done + kAhead);
            }
            splitter = seen;
        }

        SplitLines left, right;
        int64_t first = 0, count = 0, behind = 0, done = 0;
        Splitter splitter;

      private:
        static constexpr int64_t kAhead = 64;

        void ask_for(const FloatLines& x, int64_t row) const {
            if (row + 1 < count + behind) x.ask_for(first + row, 2);
        }
    };

    // So that the panels of a chunk stay in L2.
    static int64_t rows_of_chunk(int64_t width) {
        constexpr int64_t kElements = 1 << 16, kMost = 128;
        const int64_t fit = kElements / width / kPanelStep * kPanelStep;
        return fit < kPanelStep ? kPanelStep : fit < kMost ? fit : kMost;
    }

    template <typename Step>
    void multiply(const Chunk& chunk, int64_t m, int64_t n, const Step& step) const {
        const int64_t parts = m_packed_ / kPanelWidth * (n_packed_ / kPanelWidth) * chunk.steps();
        const int64_t share = (chunk.pairs() + parts - 1) / parts;
        for (int64_t i = 0; i < m; i += kPanelWidth) {
            for (int64_t j = 0; j < n; j += kPanelWidth) {
                with_panel(m - i, n - j, &sums_[i * n_packed_ + j], n_packed_, [&](auto sums) {
                    const int8_t *left = chunk.left.panel(i), *right = chunk.right.panel(j);
                    sums.load();
                    for (int64_t s = 0; s < chunk.steps(); ++s, left += kStepBytes, right += kStepBytes) {
                        sums.add_step(left, right);
                        step(share);
                    }
                    sums.store();
                });
            }
        }
    }

    const Tiles tiles_;
    const int64_t m_packed_, n_packed_, most_rows_;
    Chunk chunks_[2];
    const Buffer<float> sums_;
    const FloatPart in_floats_;
};

}  // namespace gqc::GQC_ISA
