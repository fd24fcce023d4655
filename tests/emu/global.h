// Global memory: plain pointers, except that wide accesses must be aligned.
#pragma once

#include <cstdint>
#include <string>

#include "block.h"

namespace emu {

template <typename V>
void check_alignment(const void* p) {
    const auto address = reinterpret_cast<uintptr_t>(p);
    if (address % alignof(V))
        fault("misaligned access to global memory: " + std::to_string(sizeof(V)) + " bytes at an address that is " +
              std::to_string(address % alignof(V)) + " past a multiple of " + std::to_string(alignof(V)));
}

}  // namespace emu

template <typename V>
V global_load(const void* p) {
    emu::check_alignment<V>(p);
    return *static_cast<const V*>(p);
}
template <typename V>
void global_store(void* p, V value) {
    emu::check_alignment<V>(p);
    *static_cast<V*>(p) = value;
}

template <typename T>
T __ldg(const T* p) {
    return global_load<T>(p);
}

inline void __threadfence() {}
inline void __threadfence_block() {}
