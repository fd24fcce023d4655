// Logits that are computed from a row of features at either end of an edge.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/head_dots.h"
#include "cpu/graph/head_units.h"

namespace gqc::GQC_ISA {

// What a source's key and a destination's query, `width` floats a head, give as logit: factor * <k, q> or, where there
// is a vector `a` of a head, <a, leaky ReLU(k + q)>, of slope `factor`.
struct Keys {
    const float* k;  // null: logits are sums of two numbers
    const float* q;
    const float* a;
    float factor;
    int64_t heads, width;

    int64_t row() const { return heads * width; }
};

// Logits of one row of keys or queries with rows of the other kind.
class Scores {
  public:
    explicit Scores(const Keys& keys)
        : keys_(keys), units_(keys.heads, keys.k ? keys.width : 1), dots_(keys.heads, keys.width), a_(units_.size()) {
        if (!keys.a || !ok()) return;
        for (int64_t k = 0; k < units_.count; ++k) {
            for (int64_t i = 0; i < units_.lanes; ++i)
                a_[k * units_.lanes + i] = i < units_.shared(k) ? 0.0f : keys.a[units_.first(k) + i];
        }
    }

    bool ok() const { return dots_.ok() && a_.ok(); }

    // logits[(p - begin) * heads + h] of `fixed` with x[rows[p]], p = begin .. end.
    __attribute__((noinline)) void compute(const float* fixed, const float* x, const AnyIndices& numbers, int64_t begin,
                                           int64_t end, int64_t last, float* logits) {
        if (begin == end) return;
        if (!keys_.a) dots_.fix(fixed);
        numbers.with_type([&](auto* rows) {
            if (keys_.a) return add_up(fixed, x, rows, begin, end, last, logits);
            dots_.dot(x, rows, begin, end, last, keys_.factor, logits);
        });
    }

  private:
    template <typename Index>
    void add_up(const float* fixed, const float* x, const Index* rows, int64_t begin, int64_t end, int64_t last,
                float* logits) const {
        const int64_t row = keys_.row(), bytes = row * static_cast<int64_t>(sizeof(float));
        const int64_t distance = entries_ahead(bytes);
        with_lanes(units_.lanes, [&](auto lanes) {
            for (int64_t p = begin; p < end; ++p) {
                const int64_t ahead = p + distance < last ? p + distance : last;
                const float* const next = x + static_cast<int64_t>(rows[ahead]) * row;
                for (int64_t i = 0; i < row; i += 16) __builtin_prefetch(next + i);
                __builtin_prefetch(next + row - 1);
                const float* const at = x + static_cast<int64_t>(rows[p]) * row;
                for (int64_t h = 0; h < keys_.heads; ++h) *logits++ = additive<lanes>(fixed, at, h);
            }
        });
    }

    template <int Lanes>
    float additive(const float* fixed, const float* x, int64_t head) const {
        Vector<float, Lanes> sum{};
        for (int64_t k = 0; k < units_.of_a_head; ++k) {
            const int64_t end = (k + 1) * Lanes;
            const int64_t i = head * units_.width + (end <= units_.width ? end : units_.width) - Lanes;
            const auto both = fetch<float, Lanes, 1>(x + i) + fetch<float, Lanes, 1>(fixed + i);
            const auto activated = both > Vector<float, Lanes>{} ? both : both * keys_.factor;
            const auto a = fetch<float, Lanes, 1>(a_.get() + (head * units_.of_a_head + k) * Lanes);
            sum = multiply_add<Lanes>(activated, a, sum);
        }
        return sum_of_lanes<Lanes, float>(sum);
    }

    const Keys& keys_;
    const HeadUnits units_;
    HeadDots<float, float> dots_;
    const Buffer<float> a_;
};

}  // namespace gqc::GQC_ISA
