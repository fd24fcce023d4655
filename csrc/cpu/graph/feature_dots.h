// HeadDots of features whose type is known only at run time, so that their users are compiled once for all types.
#pragma once

#include <new>
#include <type_traits>

#include "common/kernel.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/head_dots.h"
#include "cpu/graph/head_sums.h"

namespace gqc::GQC_ISA {

// Dot products of rows of `fixed`, one at a time, with rows of `others`.
class FeatureDots {
  public:
    FeatureDots(const Features& fixed, const Features& others, int64_t heads, int64_t width)
        : fixed_(fixed), others_(others), heads_(heads), row_(heads * width) {
        with_types([&](auto& dots) { new (&dots) std::decay_t<decltype(dots)>(heads, width); });
    }
    ~FeatureDots() {
        with_types([](auto& dots) {
            using Dots = std::decay_t<decltype(dots)>;
            dots.~Dots();
        });
    }
    FeatureDots(const FeatureDots&) = delete;
    FeatureDots& operator=(const FeatureDots&) = delete;

    bool ok() {
        bool is = false;
        with_types([&](auto& dots) { is = dots.ok(); });
        return is;
    }

    // to[(p - bounds[0]) * heads + h] = HeadDots::dot() of row first + i with rows[p], where p = bounds[i] ..
    // bounds[i + 1] and i < count. before(row, begin, end, their place in `to`) is called before each that has any.
    template <typename Before>
    void dot_rows(int64_t first, int64_t count, const int64_t* bounds, const AnyIndices& rows, int64_t last,
                  float scale, float* to, const Before& before) {
        with_types([&](auto& dots) {
            rows.with_type([&](auto* numbers) {
                for (int64_t i = 0; i < count; ++i) {
                    const int64_t begin = bounds[i], end = bounds[i + 1];
                    if (begin == end) continue;
                    const int64_t offset = (begin - bounds[0]) * heads_;
                    before(first + i, begin, end, offset);
                    dot(dots, first + i, numbers, begin, end, last, scale, to + offset);
                }
            });
        });
    }

  private:
    template <typename Dots, typename Index>
    __attribute__((noinline)) void dot(Dots& dots, int64_t v, const Index* rows, int64_t begin, int64_t end,
                                       int64_t last, float scale, float* to) const {
        dots.fix(static_cast<const typename Dots::OfFixed*>(fixed_.data) + v * row_);
        dots.dot(static_cast<const typename Dots::OfOthers*>(others_.data), rows, begin, end, last, scale, to);
    }

    template <typename Body>
    void with_types(const Body& body) {
        if (fixed_.is_int8) return others_.is_int8 ? body(dots_.bytes) : body(dots_.bytes_with_floats);
        others_.is_int8 ? body(dots_.floats_with_bytes) : body(dots_.floats);
    }

    union OfTypes {
        OfTypes() {}
        ~OfTypes() {}
        HeadDots<float, float> floats;
        HeadDots<float, int8_t> floats_with_bytes;
        HeadDots<int8_t, float> bytes_with_floats;
        HeadDots<int8_t, int8_t> bytes;
    };

    const Features fixed_, others_;
    const int64_t heads_, row_;
    OfTypes dots_;
};

}  // namespace gqc::GQC_ISA
