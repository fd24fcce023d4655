// Warp collectives. The lanes of a mask meet; the last one to come computes what all of them take away.
#pragma once

#include <cstdint>
#include <cstring>

#include "block.h"

namespace emu {

// What the lane takes away is in thread->request.
void meet(const char* name, Location at, uint32_t mask, void (*compute)(Warp&, uint32_t), int lane,
          const uint64_t* values, int count);

uint64_t shuffle(const char* name, Location at, uint32_t mask, uint64_t value, int source);
uint32_t ballot(const char* name, Location at, uint32_t mask, bool vote);

// First lane of the running lane's group of `width`.
int group(int width);

template <typename T>
T shuffled(const char* name, Location at, uint32_t mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffle(name, at, mask, bits, source);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

}  // namespace emu

void __syncwarp(uint32_t mask = 0xffffffffu, emu::Location at = {});

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, emu::Location at = {}) {
    return emu::shuffled("__shfl_sync", at, mask, value, emu::group(width) + (source & (width - 1)));
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane - static_cast<int>(delta);
    return emu::shuffled("__shfl_up_sync", at, mask, value, source < emu::group(width) ? emu::thread->lane : source);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane + static_cast<int>(delta);
    const bool inside = source < emu::group(width) + width;
    return emu::shuffled("__shfl_down_sync", at, mask, value, inside ? source : emu::thread->lane);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane ^ lanes;
    const bool inside = source < emu::group(width) + width;  // lower groups may be read
    return emu::shuffled("__shfl_xor_sync", at, mask, value, inside ? source : emu::thread->lane);
}

inline uint32_t __ballot_sync(uint32_t mask, int vote, emu::Location at = {}) {
    return emu::ballot("__ballot_sync", at, mask, vote != 0);
}
inline int __any_sync(uint32_t mask, int vote, emu::Location at = {}) {
    return emu::ballot("__any_sync", at, mask, vote != 0) != 0;
}
inline int __all_sync(uint32_t mask, int vote, emu::Location at = {}) {
    return emu::ballot("__all_sync", at, mask, vote != 0) == mask;
}
