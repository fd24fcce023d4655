#include "warp.h"

#include <algorithm>

namespace emu {
namespace {

void take_values(Warp& warp, uint32_t mask) {
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(mask >> lane & 1)) continue;
        Request& request = warp.lanes[lane].request;
        const bool is_named = mask >> request.lane & 1;  // of another lane, a GPU gives what a register happens to hold
        const uint64_t value = is_named ? warp.lanes[request.lane].request.value[0] : 0xBADBADBADBADBAD0u;
        std::memcpy(request.result, &value, sizeof value);
    }
}

void take_ballot(Warp& warp, uint32_t mask) {
    uint32_t votes = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        if (mask >> lane & 1 && warp.lanes[lane].request.value[0]) votes |= 1u << lane;
    for (int lane = 0; lane < kLanes; ++lane)
        if (mask >> lane & 1) warp.lanes[lane].request.result[0] = static_cast<int32_t>(votes);
}

void order_accesses(Warp& warp, uint32_t mask) {
    warp.synchronize(mask);
}

}  // namespace

void meet(const char* name, Location at, uint32_t mask, void (*compute)(Warp&, uint32_t), int lane,
          const uint64_t* values, int count) {
    Request& request = thread->request;
    request.name = name;
    request.at = at;
    request.mask = mask;
    request.meet = compute;
    request.lane = lane;
    std::copy(values, values + count, request.value);
    block.collective();
}

uint64_t shuffle(const char* name, Location at, uint32_t mask, uint64_t value, int source) {
    meet(name, at, mask, take_values, source, &value, 1);
    std::memcpy(&value, thread->request.result, sizeof value);
    return value;
}

uint32_t ballot(const char* name, Location at, uint32_t mask, bool vote) {
    const uint64_t value = vote;
    meet(name, at, mask, take_ballot, 0, &value, 1);
    return static_cast<uint32_t>(thread->request.result[0]);
}

int group(int width) {
    if (width < 1 || width > kLanes || (width & (width - 1))) fault("a shuffle's width is no power of two up to 32");
    return thread->lane & ~(width - 1);
}

}  // namespace emu

void __syncwarp(uint32_t mask, emu::Location at) {
    emu::meet("__syncwarp", at, mask, emu::order_accesses, 0, nullptr, 0);
}
