// Values on edges and heads, h0 h1 .. h0 h1 .. one edge after the other, in vectors that need not know of heads:
// `period` is the smallest number of whole vectors that hold whole edges, so an element's head follows from its place
// in the period.
#pragma once

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

using Floats = Vector<float, kWidest>;
using Ints = Vector<int32_t, kWidest>;

inline Floats at(const float* p) {
    return fetch<float, kWidest, 1>(p);
}

inline int64_t vectors(int64_t elements) {
    return (elements + kWidest - 1) / kWidest;
}

// Floats that the values of `edges` edges take: whole vectors, and one more that may be read or written behind them.
inline int64_t values_of(int64_t edges, int64_t heads) {
    return (vectors(edges * heads) + 1) * kWidest;
}

inline int64_t common_divisor(int64_t a, int64_t b) {
    return b ? common_divisor(b, a % b) : a;
}

// Calls body(integral_constant<int, heads>) for numbers of heads that have code of their own, else with 0.
template <typename Body>
auto with_heads(int64_t heads, const Body& body) {
    switch (heads) {
        case 1:
            return body(std::integral_constant<int, 1>());
        case 2:
            return body(std::integral_constant<int, 2>());
        case 4:
            return body(std::integral_constant<int, 4>());
        case 8:
            return body(std::integral_constant<int, 8>());
        default:
            return body(std::integral_constant<int, 0>());
    }
}

inline Ints lane_numbers() {
    Ints lane;
    for (int i = 0; i < kWidest; ++i) lane[i] = i;
    return lane;
}

// Which lanes of a vector hold values: all, or the first ones of a run's last vector.
struct AllLanes {
    Floats or_else(Floats x, float) const { return x; }
    void put_first(float* to, Floats x) const { put(to, x); }
};
struct FirstLanes {
    Ints are;
    Floats or_else(Floats x, float filler) const { return are ? x : broadcast<kWidest>(filler); }
    void put_first(float* to, Floats x) const { put(to, are ? x : at(to)); }
};

// How many heads there are, and memory for what has a value a head where that does not fit a vector.
class HeadScratch {
  public:
    HeadScratch(int64_t heads, int64_t slots)
        : heads(heads), period(heads / common_divisor(heads, kWidest)), memory_(slots * period * kWidest) {}

    bool ok() const { return memory_.ok(); }
    float* slot(int64_t i) const { return memory_.get() + i * period * kWidest; }

    const int64_t heads, period;

  private:
    const Buffer<float> memory_;
};

// Calls body(n, m, lanes) for the vectors of a run of `values` values: n is the vector's first element, m its place in
// the period, and `lanes` says which are values.
template <int Known, typename Body>
__attribute__((always_inline)) inline void for_vectors(const HeadScratch& heads, int64_t values, const Body& body) {
    const int64_t end = (Known && kWidest % Known == 0 ? 1 : heads.period) * kWidest;
    int64_t n = 0, m = 0;
    for (; n + kWidest <= values; n += kWidest) {
        body(n, m, AllLanes());
        if (Known && kWidest % Known == 0) continue;
        m = m + kWidest == end ? 0 : m + kWidest;
    }
    if (n < values) body(n, m, FirstLanes{lane_numbers() < static_cast<int32_t>(values - n)});
}

// A value of each head, in the place of each element of a period. It stays in a register where the number of heads is
// known and divides a vector, else it is in slot `slot` of the scratch.
template <int Known>
class PerHead {
    static constexpr bool kInRegister = Known && kWidest % Known == 0;

  public:
    PerHead(const HeadScratch& scratch, int slot) : scratch_(scratch), memory_(scratch.slot(slot)) {}

    Floats operator[](int64_t place) const {
        if constexpr (kInRegister) return register_;
        return at(memory_ + place);
    }

    void fill(float x) {
        if constexpr (kInRegister) {
            register_ = broadcast<kWidest>(x);
        } else {
            for (int64_t i = 0; i < size(); i += kWidest) put(memory_ + i, broadcast<kWidest>(x));
        }
    }

    // Gives each element the value of its head.
    void set(const float* values) {
        if constexpr (Known == 1) {
            register_ = broadcast<kWidest>(*values);
        } else if constexpr (kInRegister) {
            Floats x{};
            std::memcpy(&x, values, Known * sizeof(float));
            register_ = __builtin_shuffle(x, lane_numbers() % Known);
        } else {
            for (int64_t first = 0; first < size(); first += scratch_.heads)
                std::memcpy(memory_ + first, values, static_cast<size_t>(scratch_.heads) * sizeof(float));
        }
    }

    // Combines the elements at a place with x.
    template <typename Combine>
    void combine(int64_t place, Floats x, const Combine& with) {
        if constexpr (kInRegister) {
            register_ = with(x, register_);
        } else {
            put(memory_ + place, with(x, at(memory_ + place)));
        }
    }

    // Combines the elements of each head with each other and gives all of them the result.
    template <typename Combine>
    void reduce(const Combine& with) {
        if constexpr (kInRegister) {
            for (int turn = Known; turn < kWidest; turn *= 2)
                register_ = with(register_, __builtin_shuffle(register_, (lane_numbers() + turn) & (kWidest - 1)));
        } else {
            const int64_t heads = scratch_.heads;
            for (int64_t first = heads; first < size(); first += heads)
                for (int64_t h = 0; h < heads; ++h) memory_[h] = with(memory_[h], memory_[first + h]);
            for (int64_t i = heads; i < size(); ++i) memory_[i] = memory_[i - heads];
        }
    }

    // Writes the value of each head.
    void store(float* values) const {
        const float* const from = kInRegister ? reinterpret_cast<const float*>(&register_) : memory_;
        std::memcpy(values, from, static_cast<size_t>(Known ? Known : scratch_.heads) * sizeof(float));
    }

  private:
    int64_t size() const { return scratch_.period * kWidest; }

    const HeadScratch& scratch_;
    float* const memory_;
    Floats register_{};
};

struct Add {
    template <typename X>
    X operator()(X a, X b) const {
        return a + b;
    }
};
// The larger one; b where a is NaN.
struct Larger {
    template <typename X>
    X operator()(X a, X b) const {
        return larger(a, b);
    }
};

}  // namespace gqc::GQC_ISA
