// Copies from global to shared memory that run while the thread goes on.
#pragma once

#include "cuda/device.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kAsyncCopies = false;
#else
constexpr bool kAsyncCopies = true;
#endif

// 16 bytes of `from` to array[at], zeros where they are no part of the tensor; `from` is an address of it even then.
template <typename Array>
__device__ __forceinline__ void copy_async(Array& array, int at, const void* from, bool inside) {
#ifdef GQC_EMULATED
    emu::copy_async(array.memory(), at, from, inside);
#else
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(&array[at]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
#endif
}

// Ends a group of copies, which may be empty.
template <typename = void>
__device__ __forceinline__ void end_copies() {
#ifdef GQC_EMULATED
    emu::end_copies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until no more than the latest `count` groups of this thread are under way.
template <int count>
__device__ __forceinline__ void wait_for_copies() {
#ifdef GQC_EMULATED
    emu::wait_for_copies(count);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(count) : "memory");
#endif
}
