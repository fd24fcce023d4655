// What every kernel includes: the types and the words that differ between a GPU and the emulator of the tests.
//
// Adding a kernel
// ---------------
// 1. Put it in csrc/cuda/<family>.cu:
//
//        #include "cuda/device.cuh"
//
//        GQC_GLOBAL(256) row_sum_f32(const float* x, int64_t rows, int64_t columns, float* out) { ... }
//        GQC_EXPORT(row_sum_f32)
//
//    256 is the number of threads of its blocks; the blocks that a multiprocessor must be able to hold may follow.
//    Arguments are pointers, int64_t and float; nothing else. Templates are instantiated by one such function each.
// 2. Launch it from runtime/cuda/<family>.py: launch(target, Kernel("row_sum_f32", "piip"), grid, 256, ...).
//
// What the emulator must see is written so:
//
//     GQC_SHARED(float, sums, 32);            float sums[32] in shared memory; sums[i] reads and writes as usual,
//                                             atomicAdd(&sums[i], x) updates
//     shared_load<int4>(tile, i)              sizeof(int4) bytes of a shared array from element i on
//     shared_store<int4>(tile, i, value)
//     global_load<float4>(p)                  as *(const float4*)p; the emulator checks that p is aligned
//     global_store<float4>(p, value)
//
// A function that is given a shared array takes it as `const Array&` of a template parameter. Warps work together by
// the _sync intrinsics with full masks, and no thread leaves before the last __syncthreads() of its block. What lanes
// leave for each other in memory is ordered by __syncwarp(), not by a shuffle; nothing orders blocks. docs/cuda.md
// lists what the emulator reports.
//
// Products and sums are not contracted (-fmad=false), so that results equal the CPU's; write __fmaf_rn where only speed
// counts.
#pragma once

#ifdef GQC_EMULATED
#    include "emulator.h"
#else
#    ifdef __CUDACC_RTC__  // has no standard headers
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#    else
#        include <cstdint>
#    endif

#    define GQC_GLOBAL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#    define GQC_EXPORT(name)
#    define GQC_SHARED(type, name, count) __shared__ __align__(16) type name[count]

template <typename V, typename Array>
__device__ __forceinline__ V shared_load(const Array& array, int i) {
    return *reinterpret_cast<const V*>(&array[i]);
}
template <typename V, typename Array>
__device__ __forceinline__ void shared_store(Array& array, int i, V value) {
    *reinterpret_cast<V*>(&array[i]) = value;
}
template <typename V>
__device__ __forceinline__ V global_load(const void* p) {
    return *static_cast<const V*>(p);
}
template <typename V>
__device__ __forceinline__ void global_store(void* p, V value) {
    *static_cast<V*>(p) = value;
}
#endif

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() {
    return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int warp_id() {
    return static_cast<int>(threadIdx.x) / kWarp;
}

// Number of this thread in the grid, and threads in the grid, for loops that stride over it.
__device__ __forceinline__ int64_t grid_thread() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t grid_threads() {
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}
