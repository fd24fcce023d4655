// Products of int8 matrices with exact integer sums: out = float(sum) * (a_scale * b_scale) + bias, and the largest
// magnitude of out for the quantization that follows. The same numbers as csrc/cpu/kernels/qgemm.cpp gives.

#include "cuda/gemm_rows.cuh"

// Blocks that share a multiprocessor, whose registers then suffice for each (those of sm_75 do not).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 1;
#else
constexpr int kBlocks = 2;
#endif

// b: the right operand, [lines, width] int8 or 4-bit values, lines along the contracted index or not; columns: how many
// the packed form has, a multiple of 128; out: [chunks, columns, kChunk] bytes, 0 where b has none. Blocks: columns /
// 128 along x, chunks along y. Lanes lie in the order of their numbers, not as place_of_quad has them.
GQC_GLOBAL(128)
qgemm_pack(const void* b, int64_t packed, int64_t lines, int64_t width, int64_t along_k, int64_t columns,
           uint8_t* out) {
    GQC_SHARED(uint8_t, tile, kTileRows* kChunk);
    const Operand right(b, lines, width, packed, along_k != 0);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileRows, chunk = blockIdx.y;
    TileShare<false> share(right, thread, column, chunk * kChunk, along_k ? width : lines);
    share.load();
    share.store(tile, 0, false);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int quad = thread + i * kTileThreads, step = quad / kWarp;
        const int from = place_of_quad(step / 2, step % 2, quad % kWarp);
        global_store<uint4>(out + ((chunk * columns + column) * kChunk + quad * kPiece),
                            shared_load<uint4>(tile, from));
    }
}
GQC_EXPORT(qgemm_pack)

// a: [m, k] int8 or, where a_packed, 4-bit values; right: what qgemm_pack made of the right operand, with n rounded up
// to a multiple of the kernel's columns; bias: n floats or null; absmax: 0 on entry; m, n, k > 0, k <= 131072. The
// kernels that copy want int8 on a 16-byte boundary and k % 16 == 0.
#define GQC_ROWS(name, columns, async, T)                                                                              \
    GQC_GLOBAL(256, async ? kBlocks : 1)                                                                               \
    name(const void* a, int64_t a_packed, const uint8_t* right, int64_t m, int64_t n, int64_t k, const float* a_scale, \
         const float* b_scale, const float* bias, T* out, float* absmax) {                                             \
        multiply_rows<columns, async>(a, a_packed, right, m, n, k, a_scale, b_scale, bias, out, absmax);               \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_ROWS(qgemm_rows_128_copy_f32, 128, true, float)
GQC_ROWS(qgemm_rows_128_copy_bf16, 128, true, bfloat16)
GQC_ROWS(qgemm_rows_128_f32, 128, false, float)
GQC_ROWS(qgemm_rows_128_bf16, 128, false, bfloat16)
GQC_ROWS(qgemm_rows_256_copy_f32, 256, true, float)
GQC_ROWS(qgemm_rows_256_copy_bf16, 256, true, bfloat16)
GQC_ROWS(qgemm_rows_256_f32, 256, false, float)
GQC_ROWS(qgemm_rows_256_bf16, 256, false, bfloat16)

// kWhole: both operands are as TileShare says.
template <bool kWhole>
__device__ __forceinline__ void multiply_parts(const void* a, int64_t a_packed, int64_t a_along_k, const void* b,
                                               int64_t b_packed, int64_t b_along_k, int64_t m, int64_t n, int64_t k,
                                               int64_t part, int32_t* parts) {
    constexpr int kTile = kTileRows * kChunk, kStage = 2 * kTile, kWarpsOfRows = kTileRows / kWarpRows;
    GQC_SHARED(uint8_t, tiles, 2 * kStage);
    // The first half of the threads loads left, the second right.
    const bool is_left = threadIdx.x < kTileThreads;
    const int64_t along_k = is_left ? a_along_k : b_along_k, outer = is_left ? m : n;
    const Operand own(is_left ? a : b, along_k ? outer : k, along_k ? k : outer, is_left ? a_packed : b_packed,
                      along_k != 0);
    const int thread = static_cast<int>(threadIdx.x) % kTileThreads, tile = is_left ? 0 : kTile;
    const auto row_of_warp = [] { return thread_anew() / kWarp % kWarpsOfRows * kWarpRows; };
    const auto column_of_warp = [] { return thread_anew() / kWarp / kWarpsOfRows * kWarpColumns; };
    const auto row_of_sums = [&] { return static_cast<int64_t>(blockIdx.x) * kTileRows + row_of_warp(); };
    const auto column_of_sums = [&] { return static_cast<int64_t>(blockIdx.y) * kTileRows + column_of_warp(); };
    const int64_t first = blockIdx.z * part, last = first + part < k ? first + part : k;
    const bool works = row_of_sums() < m && column_of_sums() < n;

    WarpSums sums;
    sums.clear();
    TileShare<kWhole> share(own, thread, static_cast<int64_t>(is_left ? blockIdx.x : blockIdx.y) * kTileRows, first,
                            last);
    int chunks = static_cast<int>((last - first + kChunk - 1) / kChunk);
    share.load();
    share.store(tiles, chunks % 2 * kStage + tile, is_left);
#pragma unroll 1
    for (; chunks > 0; --chunks) {
        share.load();  // nothing after the last chunk
        __syncthreads();
        const int stage = chunks % 2 * kStage;
        if (works) {
            const int quads = stage + kTile + column_of_warp() * kChunk;
            sums.add(tiles, stage, row_of_warp(), [&](int group, int step) {
                return shared_load<uint4>(tiles, quads + place_of_quad(group, step, lane_id()));
            });
        }
        share.store(tiles, kStage - stage + tile, is_left);
    }
    if (!works) return;
    const int64_t j = column_of_sums() + sums.column_of_lane();
    const int count = count_of_eight(j, n);
    const bool vectors = n % 4 == 0 && count == kEight;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int64_t i = row_of_sums() + sums.row_of_lane(e);
        int32_t* out = parts + (blockIdx.z * m + i) * n + j;
#pragma unroll
        for (int of_lane = 0; of_lane < kWarpRows / 8; ++of_lane) {
            const auto sum = [&](int c) { return sums.at(of_lane, e, c); };
            if (i + 8 * of_lane < m && vectors) {
                global_store<int4>(out, make_int4(sum(0), sum(1), sum(2), sum(3)));
                global_store<int4>(out + 4, make_int4(sum(4), sum(5), sum(6), sum(7)));
            } else if (i + 8 * of_lane < m) {
#pragma unroll
                for (int c = 0; c < kEight; ++c)
                    if (c < count) out[c] = sum(c);
            }
            out += 8 * n;
        }
    }
}

// parts[p][i][j] = sum over the contracted indices p * part .. of a(i, k) b(k, j), for part <= 131072, a multiple of
// kChunk. a: lines along k, [m, k], or [k, m]; b: [n, k] or [k, n]. Blocks: 128 rows each along x, 128 columns along y,
// parts along z.
GQC_GLOBAL(256, 1)
qgemm_parts(const void* a, int64_t a_packed, int64_t a_along_k, const void* b, int64_t b_packed, int64_t b_along_k,
            int64_t m, int64_t n, int64_t k, int64_t part, int32_t* parts) {
    multiply_parts<false>(a, a_packed, a_along_k, b, b_packed, b_along_k, m, n, k, part, parts);
}
GQC_EXPORT(qgemm_parts)

// As qgemm_parts for int8 operands [k, m] and [k, n] on 16-byte boundaries, m and n multiples of 16: weights'
// gradients.
GQC_GLOBAL(256, kBlocks)
qgemm_parts_whole(const void* a, const void* b, int64_t m, int64_t n, int64_t k, int64_t part, int32_t* parts) {
    multiply_parts<true>(a, 0, 0, b, 0, 0, m, n, k, part, parts);
}
GQC_EXPORT(qgemm_parts_whole)

// Adds the parts, which may be more than int32 holds. Warps of a block share the parts of 32 columns of a row.
template <typename T>
__device__ __forceinline__ void add_parts(const int32_t* parts, int64_t count, int64_t m, int64_t n,
                                          const float* a_scale, const float* b_scale, const float* bias, T* out,
                                          float* absmax) {
    constexpr int kWarps = 8;
    GQC_SHARED(int64_t, sums, kWarps* kWarp);
    GQC_SHARED(uint32_t, scratch, kWarp);
    const Epilogue epilogue(a_scale, b_scale, bias);
    uint32_t seen = 0;
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane_id();
    for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
        const int32_t* part = parts + row * n + column;
        int64_t sum = 0;
        if (column < n)
#pragma unroll 4
            for (int64_t p = warp_id(); p < count; p += kWarps) sum += part[p * m * n];
        sums[static_cast<int>(threadIdx.x)] = sum;
        __syncthreads();
        if (warp_id() == 0 && column < n) {
#pragma unroll
            for (int w = 1; w < kWarps; ++w) sum += sums[w * kWarp + lane_id()];
            const float y = epilogue.value(sum, epilogue.bias_of(column));
            seen = larger(seen, magnitude(y));
            out[row * n + column] = from_float<T>(y);
        }
        __syncthreads();
    }
    raise_absmax_of_rounded<T>(absmax, seen, scratch);
}

// parts: [count, m, n], count may be 0; absmax: 0 on entry. Blocks: a column group of 32 each along x, rows along y.
GQC_GLOBAL(256)
qgemm_add_parts_f32(const int32_t* parts, int64_t count, int64_t m, int64_t n, const float* a_scale,
                    const float* b_scale, const float* bias, float* out, float* absmax) {
    add_parts(parts, count, m, n, a_scale, b_scale, bias, out, absmax);
}
GQC_EXPORT(qgemm_add_parts_f32)

GQC_GLOBAL(256)
qgemm_add_parts_bf16(const int32_t* parts, int64_t count, int64_t m, int64_t n, const float* a_scale,
                     const float* b_scale, const float* bias, bfloat16* out, float* absmax) {
    add_parts(parts, count, m, n, a_scale, b_scale, bias, out, absmax);
}
GQC_EXPORT(qgemm_add_parts_bf16)
