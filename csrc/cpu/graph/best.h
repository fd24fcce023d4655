// Which of two values max and min take.
#pragma once

#include "common/kernel.h"

namespace gqc::GQC_ISA {

struct Max {
    template <typename V>
    static auto wins(V x, V best) {
        return x >= best;
    }
};
struct Min {
    template <typename V>
    static auto wins(V x, V best) {
        return x <= best;
    }
};

// Lane by lane, a value that stands behind those before it, with its position: of equal values the last wins, and NaN
// over every number.
template <typename Order, typename V, typename P>
inline void take_better(V x, P here, V& best, P& position) {
    const auto wins = Order::wins(x, best) | (x != x);
    best = wins ? x : best;
    position = wins ? here : position;
}

}  // namespace gqc::GQC_ISA
