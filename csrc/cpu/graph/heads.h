// Values on edges and heads, h0 h1 .. h0 h1 .. one edge after the other, in vectors that need not know of heads.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

using Floats = Vector<float, kWidest>;

inline Floats at(const float* p) {
    return fetch<float, kWidest, 1>(p);
}

inline int64_t vectors(int64_t elements) {
    return (elements + kWidest - 1) / kWidest;
}

inline int64_t common_divisor(int64_t a, int64_t b) {
    return b ? common_divisor(b, a % b) : a;
}

// Reduces elements whose heads repeat, h0 h1 .. h0 h1 .., to one value a head. `period` is the smallest number of whole
// vectors that hold whole edges, so an element's head follows from its place in the period and vectors need not know of
// heads.
class Heads {
  public:
    explicit Heads(int64_t heads)
        : heads_(heads), period_(heads / common_divisor(heads, kWidest)), state_(period_ * kWidest) {}

    bool ok() const { return state_.ok(); }

    // The state's vector for vector i of a row.
    float* of(int64_t i) const { return state_.get() + (period_ == 1 ? 0 : i % period_) * kWidest; }

    // Gives each element the value of its head.
    void set(const float* values) const {
        switch (heads_) {
            case 1:
                return put(state_.get(), broadcast<kWidest>(*values));
            case 2:
                return repeat<2>(values);
            case 4:
                return repeat<4>(values);
            case 8:
                if (kWidest >= 8) return repeat<8>(values);
        }
        for (int64_t first = 0; first < period_ * kWidest; first += heads_)
            for (int64_t h = 0; h < heads_; ++h) state_[first + h] = values[h];
    }
    // The value of a head where each element holds that of its head.
    float operator[](int64_t head) const { return state_[head]; }

    // For a row of `count` vectors: fill the state, and reduce it so that each element holds the value of its head.
    void fill(int64_t count, float x) const {
        for (int64_t i = 0; i < used(count); i += kWidest) put(state_.get() + i, broadcast<kWidest>(x));
    }
    // Combines x(0) .. x(count - 1), the vectors of a row, as fill and reduce do.
    template <typename Combine, typename X>
    void combine(int64_t count, float start, const Combine& combine, const X& x) const {
        if (period_ == 1) {
            Floats sum = broadcast<kWidest>(start);
            for (int64_t i = 0; i < count; ++i) sum = combine(x(i), sum);
            put(state_.get(), turned(sum, combine));
        } else {
            fill(count, start);
            for (int64_t i = 0; i < count; ++i) put(of(i), combine(x(i), at(of(i))));
            reduce(count, combine);
        }
    }
    template <typename Combine>
    void reduce(int64_t count, const Combine& combine) const {
        if (period_ == 1) return put(state_.get(), turned(at(state_.get()), combine));
        const int64_t n = used(count);
        for (int64_t i = heads_; i < n; ++i) state_[i % heads_] = combine(state_[i % heads_], state_[i]);
        for (int64_t i = heads_; i < n; ++i) state_[i] = state_[i - heads_];
    }

  private:
    int64_t used(int64_t count) const { return (count < period_ ? count : period_) * kWidest; }

    // The heads divide the vector: combine it with itself, turned by 1, 2, 4, .. edges.
    template <typename Combine>
    Floats turned(Floats x, const Combine& combine) const {
        Vector<int32_t, kWidest> lane;
        for (int i = 0; i < kWidest; ++i) lane[i] = i;
        for (int32_t turn = static_cast<int32_t>(heads_); turn < kWidest; turn *= 2) {
            x = combine(x, __builtin_shuffle(x, (lane + turn) & (kWidest - 1)));
        }
        return x;
    }

    // Heads that divide the vector.
    template <int Heads>
    void repeat(const float* values) const {
        Floats x{};
        std::memcpy(&x, values, Heads * sizeof(float));
        Vector<int32_t, kWidest> lane;
        for (int i = 0; i < kWidest; ++i) lane[i] = i % Heads;
        put(state_.get(), __builtin_shuffle(x, lane));
    }

    const int64_t heads_, period_;
    const Buffer<float> state_;
};

}  // namespace gqc::GQC_ISA
