// The largest magnitude of what a block has seen, into an absmax in global memory.
#pragma once

#include "cuda/scalar.cuh"

__device__ __forceinline__ uint32_t warp_largest(uint32_t x) {
#pragma unroll
    for (int distance = kWarp / 2; distance; distance /= 2) x = larger(x, __shfl_xor_sync(kAllLanes, x, distance));
    return x;
}

// Called by all threads of a block of at most 1024. *absmax is a float that some kernel or memset has made 0: a
// magnitude's bits order as its value does, so an integer maximum raises it.
template <typename Scratch>
__device__ __forceinline__ void raise_absmax(float* absmax, uint32_t seen, Scratch& scratch) {
    seen = warp_largest(seen);
    if (lane_id() == 0) scratch[warp_id()] = seen;
    __syncthreads();
    if (warp_id() == 0) {
        const uint32_t of_warp = lane_id() < static_cast<int>(blockDim.x) / kWarp ? uint32_t(scratch[lane_id()]) : 0u;
        seen = warp_largest(of_warp);
        if (lane_id() == 0 && seen > 0) atomicMax(reinterpret_cast<uint32_t*>(absmax), seen);
    }
}
