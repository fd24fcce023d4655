// Kernels with one fault each, beside the right kernel where it is not plain: tests/emu/test_emulator.py says which.

#include "cuda/absmax.cuh"

// ---- barriers

// out[i] = x[i + 1], through shared memory.
template <bool has_barrier, bool has_second_barrier>
__device__ __forceinline__ void shift(const float* x, float* out, int64_t rounds) {
    GQC_SHARED(float, tile, 257);
    const int i = static_cast<int>(threadIdx.x);
    for (int64_t round = 0; round < rounds; ++round) {
        tile[i] = x[i];
        if (i == 0) tile[256] = 0.0f;
        if (has_barrier) __syncthreads();
        const float next = tile[i + 1];
        if (has_second_barrier) __syncthreads();
        out[i] = next;
    }
}
GQC_GLOBAL(256) shift_right(const float* x, float* out, int64_t rounds) {
    shift<true, true>(x, out, rounds);
}
GQC_EXPORT(shift_right)
GQC_GLOBAL(256) missing_barrier(const float* x, float* out, int64_t rounds) {
    shift<false, true>(x, out, rounds);
}
GQC_EXPORT(missing_barrier)
GQC_GLOBAL(256) missing_barrier_before_reuse(const float* x, float* out, int64_t rounds) {
    shift<true, false>(x, out, rounds);
}
GQC_EXPORT(missing_barrier_before_reuse)

GQC_GLOBAL(64) barrier_after_early_exit(float* out, int64_t n) {
    if (grid_thread() >= n) return;
    __syncthreads();
    out[grid_thread()] = 1.0f;
}
GQC_EXPORT(barrier_after_early_exit)

GQC_GLOBAL(64) different_barriers(float* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1.0f;
}
GQC_EXPORT(different_barriers)

GQC_GLOBAL(64) barrier_of_one_warp(float* out) {
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = static_cast<float>(__shfl_sync(kAllLanes, lane_id(), 0));
}
GQC_EXPORT(barrier_of_one_warp)

// ---- warps

// out[i] = i + 1 of its warp, through shared memory.
template <bool has_order, typename Order>
__device__ __forceinline__ void rotate(float* out, Order order) {
    GQC_SHARED(int, tile, 64);
    tile[threadIdx.x] = lane_id();
    if (has_order) order();
    out[threadIdx.x] = static_cast<float>(tile[warp_id() * kWarp + (lane_id() + 1) % kWarp]);
}
GQC_GLOBAL(64) rotate_right(float* out) {
    rotate<true>(out, [] { __syncwarp(); });
}
GQC_EXPORT(rotate_right)
GQC_GLOBAL(64) missing_warp_barrier(float* out) {
    rotate<false>(out, [] {});
}
GQC_EXPORT(missing_warp_barrier)
GQC_GLOBAL(64) ordered_by_a_shuffle(float* out) {
    rotate<true>(out, [] { __shfl_sync(kAllLanes, 0, 0); });
}
GQC_EXPORT(ordered_by_a_shuffle)
GQC_GLOBAL(64) ordered_by_half_a_warp(float* out) {
    rotate<true>(out, [] { __syncwarp(lane_id() < 16 ? 0xffffu : 0xffff0000u); });
}
GQC_EXPORT(ordered_by_half_a_warp)

GQC_GLOBAL(32) mask_names_a_lane_that_left(float* out, int64_t n) {
    if (lane_id() >= n) return;
    out[lane_id()] = __shfl_down_sync(kAllLanes, 1.0f, 1);
}
GQC_EXPORT(mask_names_a_lane_that_left)

GQC_GLOBAL(32) lane_outside_its_mask(float* out) {
    out[lane_id()] = __shfl_xor_sync(0xffffu, 1.0f, 1);
}
GQC_EXPORT(lane_outside_its_mask)

GQC_GLOBAL(32) different_collectives(float* out) {
    if (lane_id() % 2) {
        out[lane_id()] = __shfl_sync(kAllLanes, 1.0f, 0);
    } else {
        out[lane_id()] = static_cast<float>(__ballot_sync(kAllLanes, 1));
    }
}
GQC_EXPORT(different_collectives)

GQC_GLOBAL(32) different_masks(float* out) {
    out[lane_id()] = __shfl_sync(lane_id() < 16 ? kAllLanes : 0xffff0000u, 1.0f, 20);
}
GQC_EXPORT(different_masks)

// The lanes of each half work together.
GQC_GLOBAL(32) halves_right(float* out) {
    const uint32_t mask = lane_id() < 16 ? 0xffffu : 0xffff0000u;
    float x = static_cast<float>(lane_id());
    for (int distance = 8; distance; distance /= 2) x += __shfl_xor_sync(mask, x, distance);
    out[lane_id()] = x;
}
GQC_EXPORT(halves_right)

// ---- shared memory

GQC_GLOBAL(32) read_of_unwritten_shared_memory(float* out) {
    GQC_SHARED(float, tile, 33);
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x + 1];
}
GQC_EXPORT(read_of_unwritten_shared_memory)

GQC_GLOBAL(32) shared_memory_out_of_range(float* out) {
    GQC_SHARED(float, tile, 32);
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x + 1];
}
GQC_EXPORT(shared_memory_out_of_range)

GQC_GLOBAL(32) shared_vector_out_of_range(float* out) {
    GQC_SHARED(float, tile, 30);
    if (threadIdx.x < 8) shared_store(tile, static_cast<int>(threadIdx.x) * 4, make_float4(1, 1, 1, 1));
    __syncthreads();
    out[threadIdx.x] = tile[0];
}
GQC_EXPORT(shared_vector_out_of_range)

GQC_GLOBAL(32) misaligned_shared_vector(float* out) {
    GQC_SHARED(float, tile, 160);
    shared_store(tile, static_cast<int>(threadIdx.x) * 5, make_float4(1, 1, 1, 1));
    out[threadIdx.x] = tile[threadIdx.x * 5];
}
GQC_EXPORT(misaligned_shared_vector)

GQC_GLOBAL(32) too_much_shared_memory(float* out) {
    GQC_SHARED(float, tile, 12289);
    tile[threadIdx.x] = 1.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
GQC_EXPORT(too_much_shared_memory)

GQC_GLOBAL(64) lost_update_in_shared_memory(float* out) {
    GQC_SHARED(int, sum, 1);
    if (threadIdx.x == 0) sum[0] = 0;
    __syncthreads();
    sum[0] += 1;
    __syncthreads();
    out[threadIdx.x] = static_cast<float>(sum[0]);
}
GQC_EXPORT(lost_update_in_shared_memory)

GQC_GLOBAL(64) update_in_shared_memory_right(float* out) {
    GQC_SHARED(int, sum, 1);
    if (threadIdx.x == 0) sum[0] = 0;
    __syncthreads();
    atomicAdd(&sum[0], 1);
    __syncthreads();
    out[threadIdx.x] = static_cast<float>(sum[0]);
}
GQC_EXPORT(update_in_shared_memory_right)

GQC_GLOBAL(64) read_beside_updates(float* out) {
    GQC_SHARED(int, sum, 1);
    if (threadIdx.x == 0) sum[0] = 0;
    __syncthreads();
    atomicAdd(&sum[0], 1);
    out[threadIdx.x] = static_cast<float>(sum[0]);
}
GQC_EXPORT(read_beside_updates)

// ---- global memory

GQC_GLOBAL(64) read_out_of_range(const float* x, float* out, int64_t n) {
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) out[i] = x[i + 1];
}
GQC_EXPORT(read_out_of_range)

GQC_GLOBAL(64) write_before_the_begin(float* out) {
    out[static_cast<int>(threadIdx.x) - 1] = 1.0f;
}
GQC_EXPORT(write_before_the_begin)

GQC_GLOBAL(32) no_memory(float* out) {
    *out = 1.0f;
}
GQC_EXPORT(no_memory)

GQC_GLOBAL(32) misaligned_vector(const float* x, float* out) {
    global_store(out + 4 * threadIdx.x, global_load<float4>(x + 1 + 4 * threadIdx.x));
}
GQC_EXPORT(misaligned_vector)

GQC_GLOBAL(32) misaligned_plain_vector(const float* x, float* out) {
    *reinterpret_cast<float4*>(out + 4 * threadIdx.x) = *reinterpret_cast<const float4*>(x + 1 + 4 * threadIdx.x);
}
GQC_EXPORT(misaligned_plain_vector)

GQC_GLOBAL(32) lost_update(const float* x, float* out) {
    *out += x[grid_thread()];
}
GQC_EXPORT(lost_update)

GQC_GLOBAL(32) update_right(const float* x, float* out) {
    atomicAdd(out, x[grid_thread()]);
}
GQC_EXPORT(update_right)

GQC_GLOBAL(32) same_place_of_two_blocks(float* out) {
    out[threadIdx.x] = static_cast<float>(blockIdx.x);
}
GQC_EXPORT(same_place_of_two_blocks)

GQC_GLOBAL(32) read_of_another_block(float* out) {
    if (blockIdx.x == 0) out[threadIdx.x] = 1.0f;
    if (blockIdx.x == 1) out[32 + threadIdx.x] = out[threadIdx.x];
}
GQC_EXPORT(read_of_another_block)

// Each byte has a writer of its own; the words around it have several.
GQC_GLOBAL(64) bytes_right(int8_t* out) {
    out[grid_thread()] = static_cast<int8_t>(threadIdx.x);
}
GQC_EXPORT(bytes_right)

// Each pair of threads has one byte.
GQC_GLOBAL(64) halves_of_a_byte(uint8_t* out) {
    out[grid_thread() / 2] |= static_cast<uint8_t>(1 << threadIdx.x % 2 * 4);
}
GQC_EXPORT(halves_of_a_byte)

// What a thread leaves in global memory for another one of its block.
template <bool has_barrier>
__device__ __forceinline__ void shift_in_place(float* x) {
    x[threadIdx.x] = 1.0f;
    if (has_barrier) __syncthreads();
    const float next = x[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    x[threadIdx.x] = next;
}
GQC_GLOBAL(64) global_barrier_right(float* x) {
    shift_in_place<true>(x);
}
GQC_EXPORT(global_barrier_right)
GQC_GLOBAL(64) missing_global_barrier(float* x) {
    shift_in_place<false>(x);
}
GQC_EXPORT(missing_global_barrier)

// ---- a thread's own memory, which only the sanitizers see

GQC_GLOBAL(32) local_array_out_of_range(float* out, int64_t n) {
    float own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    for (int64_t i = 0; i < n; ++i) own[i % n] += own[(i + 1) % n];
    out[threadIdx.x] = own[threadIdx.x % 4];
}
GQC_EXPORT(local_array_out_of_range)

GQC_GLOBAL(32) integer_overflow(float* out, int64_t n) {
    out[threadIdx.x] = static_cast<float>(static_cast<int>(n) + static_cast<int>(threadIdx.x));
}
GQC_EXPORT(integer_overflow)

// ---- copies that run while the thread goes on

template <bool has_wait, bool has_barrier>
__device__ __forceinline__ void copy(const float* x, float* out) {
    GQC_SHARED(float, tile, 256);
    const int i = static_cast<int>(threadIdx.x);
    if (i < 64) emu::copy_async(tile.memory(), 4 * i, x + 4 * i, i < 63);
    emu::end_copies();
    if (has_wait) emu::wait_for_copies(0);
    if (has_barrier) __syncthreads();
    out[i] = tile[(i + 4) % 256];
}
GQC_GLOBAL(256) copy_right(const float* x, float* out) {
    copy<true, true>(x, out);
}
GQC_EXPORT(copy_right)
GQC_GLOBAL(256) copy_without_wait(const float* x, float* out) {
    copy<false, true>(x, out);
}
GQC_EXPORT(copy_without_wait)
GQC_GLOBAL(256) copy_without_barrier(const float* x, float* out) {
    copy<true, false>(x, out);
}
GQC_EXPORT(copy_without_barrier)

// ---- launches

GQC_GLOBAL(64) launched(float* out, int64_t n, float value) {
    if (grid_thread() < n) out[grid_thread()] = value;
}
GQC_EXPORT(launched)
