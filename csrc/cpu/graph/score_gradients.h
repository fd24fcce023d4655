// Gradients of keys and queries from those of the logits, see attention_scores.h.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention_scores.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/head_units.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

// The gradient of a row of queries, or of keys, is a sum over its edges, weighted by the gradients of their logits: of
// the other end's rows where logits are dot products; else of the slopes of the leaky ReLU, times the vector `a`. That
// vector's gradient follows from the same sums: an edge adds slope * (k + q) to it, so a node adds its row times its
// sum.
class ScoreGradients {
    static constexpr int kTile = 8;

  public:
    // Rows of a block add to one partial gradient of `a`; a block has one writer.
    static constexpr int64_t kBlock = 64;

    ScoreGradients(const Keys& keys, int64_t rows)
        : keys_(keys),
          units_(keys.heads, keys.k ? keys.width : 1),
          sums_(keys.heads, keys.k ? keys.width : 1),
          factors_(keys.heads + kWidest),
          of_a_(keys.a ? (rows + kBlock - 1) / kBlock * units_.size() : 0) {
        if (!ok()) return;
        for (int64_t h = 0; h < keys.heads; ++h) factors_[h] = keys.factor;
        if (keys.a) of_a_.clear();
    }

    bool ok() const { return sums_.ok() && factors_.ok() && of_a_.ok(); }

    // Floats that the sums of a part of a row take.
    int64_t size() const { return !keys_.k ? 0 : keys_.a ? units_.size() : sums_.size(); }

    // to = the gradient of row v, `fixed`, from rows of the other end and gradients of logits.
    void write(int64_t v, const float* fixed, const WeightedRows& rows, float* to, bool streamed,
               LargestSeen& seen) const {
        if (!keys_.a) return sums_.write<false>(rows, factors_.get(), to, streamed, seen);
        float* const of_a = of_a_.get() + v / kBlock * units_.size();
        for_slopes(fixed, rows, [&](auto lanes, int64_t unit, auto sum) {
            const Vector<float, lanes> value = finished<lanes>(unit, fixed, sum, of_a);
            float* const at = to + units_.first(unit);
            if (lanes == kWidest && streamed) return stream_vector(&value, at);
            put(at, value);
        });
    }

    bool is_streamed(const float* to, int64_t rows) const { return keys_.k && sums_.is_streamed(to, rows); }

    // Adds the rows to the sums of a part of a row.
    void add(const float* fixed, const WeightedRows& rows, float* sums) const {
        if (!keys_.a) return sums_.add<false>(rows, sums);
        for_slopes(fixed, rows, [&](auto lanes, int64_t unit, auto sum) {
            float* const at = sums + unit * lanes;
            put(at, fetch<float, lanes, 1>(at) + sum);
        });
    }

    // sums = sums * factors[h] + others * of_others[h].
    void join(float* sums, const float* factors, const float* others, const float* of_others) const {
        if (!keys_.a) return sums_.join(sums, factors, others, of_others);
        const int64_t of_a_head = units_.of_a_head * units_.lanes;
        for (int64_t i = 0; i < units_.size(); ++i)
            sums[i] = sums[i] * factors[i / of_a_head] + others[i] * of_others[i / of_a_head];
    }

    // to = the gradient of a row from its sums. That of `a` is left to finish_long.
    void write_sums(const float* sums, float* to, LargestSeen& seen) const {
        if (!keys_.a) return sums_.write_sums(sums, factors_.get(), to, seen);
        for (int64_t unit = 0; unit < units_.count; ++unit) {
            std::memcpy(to + units_.first(unit), sums + unit * units_.lanes,
                        static_cast<size_t>(units_.lanes) * sizeof(float));
        }
    }

    // What write_sums left of row v.
    void finish_long(int64_t v, const float* fixed, float* to) const {
        if (!keys_.a) return;
        float* const of_a = of_a_.get() + v / kBlock * units_.size();
        for (int64_t unit = 0; unit < units_.count; ++unit) {
            const int64_t first = units_.first(unit);
            for (int64_t i = units_.shared(unit); i < units_.lanes; ++i) {
                const float sum = to[first + i];
                of_a[unit * units_.lanes + i] += fixed[first + i] * sum;
                to[first + i] = sum * keys_.a[first + i];
            }
        }
    }

    // to[i] += the gradient of `a`.
    void add_gradient(int64_t rows, double* to) const {
        for (int64_t block = 0; block * kBlock < rows; ++block) {
            const float* const of_a = of_a_.get() + block * units_.size();
            for (int64_t unit = 0; unit < units_.count; ++unit) {
                for (int64_t i = units_.shared(unit); i < units_.lanes; ++i)
                    to[units_.first(unit) + i] += static_cast<double>(of_a[unit * units_.lanes + i]);
            }
        }
    }

  private:
    template <int Lanes>
    Vector<float, Lanes> finished(int64_t unit, const float* fixed, Vector<float, Lanes> sum, float* of_a) const {
        const int64_t first = units_.first(unit);
        float* const at = of_a + unit * Lanes;
        put(at, multiply_add<Lanes>(fetch<float, Lanes, 1>(fixed + first), sum, fetch<float, Lanes, 1>(at)));
        return sum * fetch<float, Lanes, 1>(keys_.a + first);
    }

    // finish(lanes, unit, sum over the rows of their weight times the slope at row + fixed).
    template <typename Finish>
    __attribute__((noinline)) void for_slopes(const float* fixed, const WeightedRows& rows,
                                              const Finish& finish) const {
        rows.with_index<float>([&](const auto& typed) {
            with_lanes(units_.lanes, [&](auto lanes) {
                int64_t unit = 0;
                for (; unit + kTile <= units_.count; unit += kTile) slopes_of<lanes, kTile>(fixed, typed, unit, finish);
                for (; unit < units_.count; ++unit) slopes_of<lanes, 1>(fixed, typed, unit, finish);
            });
        });
    }

    template <int Lanes, int Tile, typename Index, typename Finish>
    void slopes_of(const float* fixed, const TypedWeightedRows<float, Index>& rows, int64_t unit,
                   const Finish& finish) const {
        Vector<float, Lanes> sum[Tile] = {}, stays[Tile];
        int64_t first[Tile], head[Tile];
#pragma GCC unroll 8
        for (int k = 0; k < Tile; ++k) {
            first[k] = units_.first(unit + k);
            head[k] = (unit + k) / units_.of_a_head;
            stays[k] = fetch<float, Lanes, 1>(fixed + first[k]);
        }
        const float* weights = rows.weights;
        for (int64_t p = rows.begin; p < rows.end; ++p, weights += keys_.heads) {
            const float* const x = rows.x + static_cast<int64_t>(rows.rows[p]) * keys_.row();
#pragma GCC unroll 8
            for (int k = 0; k < Tile; ++k) {
                const auto weight = broadcast<Lanes>(weights[head[k]]);
                const auto both = fetch<float, Lanes, 1>(x + first[k]) + stays[k];
                sum[k] += both > Vector<float, Lanes>{} ? weight : weight * keys_.factor;
            }
        }
#pragma GCC unroll 8
        for (int k = 0; k < Tile; ++k) finish(std::integral_constant<int, Lanes>(), unit + k, sum[k]);
    }

    const Keys& keys_;
    const HeadUnits units_;
    const HeadSums sums_;
    const Buffer<float> factors_;
    const Buffer<float> of_a_;
};

}  // namespace gqc::GQC_ISA
