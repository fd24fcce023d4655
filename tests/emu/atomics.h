// Atomic updates of global memory, by pointer, and of shared memory, by &array[i]. Only one thread runs at a time.
#pragma once

#include <cstdint>

#include "global.h"
#include "shared.h"

namespace emu {

template <typename T, typename Update>
T update(T* p, Update f) {
    check_alignment<T>(p);
    const T before = *p;
    *p = f(before);
    return before;
}
template <typename Array, typename Update>
auto update(const SharedElement<Array>& element, Update f) {
    return element.update(f);
}

template <typename Place>
struct Updated;
template <typename T>
struct Updated<T*> {
    using Type = T;
};
template <typename Array>
struct Updated<SharedElement<Array>> {
    using Type = typename Array::Element;
};
template <typename Place>
using UpdatedType = typename Updated<Place>::Type;

}  // namespace emu

#define GQC_ATOMIC(name, result)                                                     \
    template <typename Place, typename T = emu::UpdatedType<Place>>                  \
    T name(Place place, emu::UpdatedType<Place> value) {                             \
        return emu::update(place, [=](T before) { return static_cast<T>(result); }); \
    }
GQC_ATOMIC(atomicAdd, before + value)
GQC_ATOMIC(atomicSub, before - value)
GQC_ATOMIC(atomicMax, before < value ? value : before)
GQC_ATOMIC(atomicMin, value < before ? value : before)
GQC_ATOMIC(atomicOr, before | value)
GQC_ATOMIC(atomicAnd, before& value)
GQC_ATOMIC(atomicXor, before ^ value)
GQC_ATOMIC(atomicExch, value)
#undef GQC_ATOMIC

template <typename Place, typename T = emu::UpdatedType<Place>>
T atomicCAS(Place place, emu::UpdatedType<Place> expected, emu::UpdatedType<Place> value) {
    return emu::update(place, [=](T before) { return before == expected ? value : before; });
}
