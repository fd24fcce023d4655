// The instructions whose values stay in registers.
#pragma once

#include "cpu/pointwise/instructions.h"
#include "cpu/pointwise/steps.h"

namespace gqc::GQC_ISA {

// Vectors that the compiler keeps in registers, which it does not with an array.
template <int Count>
struct Pack {
    Pack<Count / 2> low, high;
};
template <>
struct Pack<1> {
    Floats x;
};
using Values = Pack<kStripVectors>;

#define GQC_INLINE __attribute__((always_inline)) inline

// f(j) for each vector, from `First` on.
template <int Count, int First = 0, typename F>
GQC_INLINE Pack<Count> make(const F& f) {
    if constexpr (Count == 1)
        return {f(First)};
    else
        return {make<Count / 2, First>(f), make<Count / 2, First + Count / 2>(f)};
}

// f(vector j, j) for each.
template <int Count, int First = 0, typename F>
GQC_INLINE Pack<Count> map(Pack<Count> a, const F& f) {
    if constexpr (Count == 1)
        return {f(a.x, First)};
    else
        return {map<Count / 2, First>(a.low, f), map<Count / 2, First + Count / 2>(a.high, f)};
}
template <int Count, int First = 0, typename F>
GQC_INLINE void each(Pack<Count> a, const F& f) {
    if constexpr (Count == 1) {
        f(a.x, First);
    } else {
        each<Count / 2, First>(a.low, f);
        each<Count / 2, First + Count / 2>(a.high, f);
    }
}
// f(vector j, vector j + 1, j) for each two.
template <int Count, int First = 0, typename F>
GQC_INLINE void each_two(Pack<Count> a, const F& f) {
    if constexpr (Count == 2) {
        f(a.low.x, a.high.x, First);
    } else {
        each_two<Count / 2, First>(a.low, f);
        each_two<Count / 2, First + Count / 2>(a.high, f);
    }
}

// f(vectors j to j + 3, j) for each four.
template <int Count, int First = 0, typename F>
GQC_INLINE void each_four(Pack<Count> a, const F& f) {
    if constexpr (Count == 4) {
        f(a.low.low.x, a.low.high.x, a.high.low.x, a.high.high.x, First);
    } else {
        each_four<Count / 2, First>(a.low, f);
        each_four<Count / 2, First + Count / 2>(a.high, f);
    }
}

// Vectors of an operand in memory; read where they are used, they need no register.
struct Each {
    const float* from;
    GQC_INLINE Floats operator()(int j) const { return load_wide(from + j * kWide); }
};
struct Repeated {
    const float* from;
    GQC_INLINE Floats operator()(int j) const { return all(from[j]); }
};

// Raises the largest magnitude lane by lane, as bits, by `count` elements of a strip.
GQC_INLINE void look(Values a, int64_t count, Ints* largest) {
    Ints seen = *largest;
    if (count >= kStrip) {
        each(a, [&](Floats x, int) { seen = larger(seen, bits_of(magnitude_of(x))); });
    } else {
        Ints place;
        for (int i = 0; i < kWide; ++i) place[i] = i;
        each(a, [&](Floats x, int j) {
            const Ints is_element = place < static_cast<int32_t>(count) - j * kWide;
            seen = larger(seen, bits_of(magnitude_of(x)) & is_element);
        });
    }
    *largest = seen;
}

GQC_INLINE Values apply_to_one(const Step& step, float p, Values a) {
    const auto each = [&](const auto& f)
                          __attribute__((always_inline)) { return map(a, [&](Floats x, int) { return f(x); }); };
    switch (step.instruction->op) {
        case Op::neg:
            return each([](Floats x) { return -x; });
        case Op::abs:
            return each([](Floats x) { return magnitude_of(x); });
        case Op::relu:
            return each([](Floats x) { return x < 0.0f ? Floats{} : x; });
        case Op::square:
            return each([](Floats x) { return x * x; });
        case Op::leaky_relu:
            return each([p](Floats x) { return x > 0.0f ? x : x * p; });
        case Op::logical_not:
            return each([](Floats x) { return mask_of(~bits_of(x)); });
        case Op::to_bfloat16:
            return each([](Floats x) { return in_bfloat16(x); });
        default:
            return a;
    }
}

// b: the operand that is not in registers.
template <typename Operand>
GQC_INLINE Values apply_to_two(const Step& step, float p, Values a, const Operand& b) {
    const auto of_both = [&](const auto& f) __attribute__((always_inline)) {
        return map(a, [&](Floats x, int j) { return f(x, b(j)); });
    };
    const auto in_order = [&](const auto& f) __attribute__((always_inline)) {
        return step.held == 0 ? of_both(f) : of_both([&](Floats x, Floats y) { return f(y, x); });
    };
    switch (step.instruction->op) {
        case Op::add:
            return of_both([](Floats x, Floats y) { return x + y; });
        case Op::sub:
            return in_order([](Floats x, Floats y) { return x - y; });
        case Op::mul:
            return of_both([](Floats x, Floats y) { return x * y; });
        case Op::div:
            return in_order([](Floats x, Floats y) { return x / y; });
        case Op::minimum:
            return in_order([](Floats x, Floats y) { return x != x ? x : (y > x ? x : y); });
        case Op::maximum:
            return in_order([](Floats x, Floats y) { return x != x ? x : (y < x ? x : y); });
        case Op::threshold_backward:
            return in_order([p](Floats grad, Floats x) { return x <= p ? Floats{} : grad; });
        case Op::leaky_relu_backward:
            return in_order([p](Floats grad, Floats x) { return x > 0.0f ? grad : grad * p; });
        case Op::lt:
            return in_order([](Floats x, Floats y) { return mask_of(x < y); });
        case Op::le:
            return in_order([](Floats x, Floats y) { return mask_of(x <= y); });
        case Op::gt:
            return in_order([](Floats x, Floats y) { return mask_of(x > y); });
        case Op::ge:
            return in_order([](Floats x, Floats y) { return mask_of(x >= y); });
        case Op::eq:
            return of_both([](Floats x, Floats y) { return mask_of(x == y); });
        case Op::ne:
            return of_both([](Floats x, Floats y) { return mask_of(x != y); });
        case Op::logical_and:
            return of_both([](Floats x, Floats y) { return mask_of(bits_of(x) & bits_of(y)); });
        case Op::logical_or:
            return of_both([](Floats x, Floats y) { return mask_of(bits_of(x) | bits_of(y)); });
        case Op::drop:  // a dropped NaN or Inf gives NaN, as in torch
            return in_order([p](Floats x, Floats kept) { return x * as_floats(bits_of(kept) & bits_of(all(p))); });
        default:
            return a;
    }
}

template <typename Operand>
GQC_INLINE Values choose(const Step& step, Values a, const float* mask, const Operand& b) {
    const auto is_set = [&](int j) __attribute__((always_inline)) { return bits_of(load_wide(mask + j * kWide)) != 0; };
    if (step.held == 1) return map(a, [&](Floats x, int j) { return is_set(j) ? x : b(j); });
    return map(a, [&](Floats x, int j) { return is_set(j) ? b(j) : x; });
}

// What an instruction makes of the strip from `at` on, of which operand step.held is in registers.
GQC_INLINE Values apply(const Step& step, Values a, int64_t at) {
    const float p = float_of(static_cast<uint32_t>(step.instruction->parameters[0]));
    if (step.others[0] == kNone) return apply_to_one(step, p, a);
    const float* const first = step.other[0];
    const float* const second = step.other[1];
    if (step.others[1] == kNone)
        return step.other_repeats[0] ? apply_to_two(step, p, a, Repeated{first + at / kWide})
                                     : apply_to_two(step, p, a, Each{first + at});
    return step.other_repeats[1] ? choose(step, a, first + at, Repeated{second + at / kWide})
                                 : choose(step, a, first + at, Each{second + at});
}

// Carries out the steps on a tile. largest: of each result that is looked for; write(step, values, at): the result
// step.written; next(): called for each strip.
template <typename Write, typename Next>
inline void run(const Steps& steps, const Tile& tile, const int64_t* seed, Ints* largest, const Write& write,
                const Next& next) {
    steps.bind(tile.slots);
    const Step* const end = steps.end();
    for (int64_t at = 0; at < tile.count; at += kStrip) {
        next();
        Values a{};
        for (const Step* step = steps.begin(); step != end; ++step) {
            if (step->held == kNone) {
                execute(*step->instruction, {tile, at}, seed);
                a = Values{};
                continue;
            }
            if (step->loaded != kNone)
                a = step->load_repeats ? make<kStripVectors>(Repeated{step->load + at / kWide})
                                       : make<kStripVectors>(Each{step->load + at});
            a = apply(*step, a, at);
            if (step->saves) {
                float* const to = step->save + at;
                each(a, [&](Floats x, int j) { put(to + j * kWide, x); });
            }
            if (step->result != kNone) look(a, tile.count - at, largest + step->result);
            if (step->written != kNone) write(*step, a, at);
        }
    }
}

#undef GQC_INLINE

}  // namespace gqc::GQC_ISA
