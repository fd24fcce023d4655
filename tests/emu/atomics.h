// Atomic updates of global memory, by pointer, and of shared memory, by &array[i]. Only one thread runs at a time.
#pragma once

#include "global.h"
#include "shared.h"

namespace emu {

template <typename Place>
struct Updated;
template <typename T>
struct Updated<T*> {
    using Type = T;

    static T* access(T* p) {
        access_global(Access::update, p, sizeof(T), alignof(T));
        return p;
    }
};
template <typename T>
struct Updated<SharedElement<T>> {
    using Type = T;

    static T* access(const SharedElement<T>& element) { return static_cast<T*>(element.access(Access::update)); }
};
template <typename Place>
using UpdatedType = typename Updated<Place>::Type;

template <typename Place, typename Update>
UpdatedType<Place> update(Place place, Update f) {
    auto* p = Updated<Place>::access(place);
    const auto before = read_unhooked<UpdatedType<Place>>(p);
    write_unhooked(p, f(before));
    return before;
}

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
