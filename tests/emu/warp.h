// Warp collectives. The lanes of a mask meet; the last one to come computes what all of them take away.
#pragma once

#include "block.h"

namespace emu {

// What the lane takes away is in thread->request.
template <typename... Words>
void meet(const char* name, Location at, uint32_t mask, void (*compute)(Warp&, uint32_t), int lane, Words... words) {
    Request& request = thread->request;
    request.name = name;
    request.at = at;
    request.mask = mask;
    request.meet = compute;
    request.lane = lane;
    int i = 0;
    ((request.value[i++] = words), ...);
    block->collective();
}

inline void take_values(Warp& warp, uint32_t mask) {
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(mask >> lane & 1)) continue;
        Request& request = warp.lanes[lane].request;
        const bool named = mask >> request.lane & 1;  // elsewhere a GPU gives what a register happens to hold
        const uint64_t value = named ? warp.lanes[request.lane].request.value[0] : 0xBADBADBADBADBAD0u;
        std::memcpy(request.result, &value, sizeof value);
    }
}

inline void take_ballot(Warp& warp, uint32_t mask) {
    uint32_t votes = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        if (mask >> lane & 1 && warp.lanes[lane].request.value[0]) votes |= 1u << lane;
    for (int lane = 0; lane < kLanes; ++lane) warp.lanes[lane].request.result[0] = static_cast<int32_t>(votes);
}

inline void take_nothing(Warp&, uint32_t) {}

template <typename T>
T shuffle(const char* name, Location at, uint32_t mask, T value, int source) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    meet(name, at, mask, take_values, source, bits);
    std::memcpy(&value, thread->request.result, sizeof value);
    return value;
}

// First lane of the running lane's group of `width`.
inline int group(int width) {
    if (width < 1 || width > kLanes || (width & (width - 1))) fault("a shuffle's width is no power of two up to 32");
    return thread->lane & ~(width - 1);
}

inline uint32_t ballot(const char* name, Location at, uint32_t mask, bool vote) {
    meet(name, at, mask, take_ballot, 0, uint64_t{vote});
    return static_cast<uint32_t>(thread->request.result[0]);
}

}  // namespace emu

inline void __syncwarp(uint32_t mask = 0xffffffffu, emu::Location at = {}) {
    emu::meet("__syncwarp", at, mask, emu::take_nothing, 0);
}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, emu::Location at = {}) {
    return emu::shuffle("__shfl_sync", at, mask, value, emu::group(width) + (source & (width - 1)));
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane - static_cast<int>(delta);
    return emu::shuffle("__shfl_up_sync", at, mask, value, source < emu::group(width) ? emu::thread->lane : source);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane + static_cast<int>(delta);
    const bool inside = source < emu::group(width) + width;
    return emu::shuffle("__shfl_down_sync", at, mask, value, inside ? source : emu::thread->lane);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes, int width = 32, emu::Location at = {}) {
    const int source = emu::thread->lane ^ lanes;
    const bool inside = source < emu::group(width) + width;  // lower groups may be read
    return emu::shuffle("__shfl_xor_sync", at, mask, value, inside ? source : emu::thread->lane);
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
inline uint32_t __activemask() {
    emu::fault("__activemask() gives no mask to work together by: which lanes run together is up to the GPU");
}
