// Products of int8 matrices with exact integer sums: out = float(sum) * (a_scale * b_scale) + bias, and the largest
// magnitude of out for the quantization that follows. The same numbers as csrc/cpu/kernels/qgemm.cpp gives.

#include "cuda/gemm_rows.cuh"

// b: the right operand, [lines, width] int8 or 4-bit values, lines along the contracted index or not; columns: how many
// the packed form has, a multiple of 128; out: [chunks, columns, kChunk] bytes, 0 where b has none. Blocks: columns /
// 128 along x, chunks along y.
GQC_GLOBAL(128)
qgemm_pack(const void* b, int64_t packed, int64_t lines, int64_t width, int64_t along_k, int64_t columns,
           uint8_t* out) {
    GQC_SHARED(uint8_t, tile, kTileRows* kChunk);
    const Operand right(b, lines, width, packed, along_k != 0);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileRows, chunk = blockIdx.y;
    TilePart part;
    part.load(right, thread, column, chunk * kChunk);
    part.store(right, thread, tile, 0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
        const int piece = thread + i * kTileThreads, row = piece / 4;
        const int from = place_of_row(row / 32 * 32 + packed_column(row % 32)) + piece % 4 * kPiece;
        global_store<uint4>(out + ((chunk * columns + column) * kChunk + piece * kPiece),
                            shared_load<uint4>(tile, from));
    }
}
GQC_EXPORT(qgemm_pack)

// a: [m, k] int8 or, where a_packed, 4-bit values; right: what qgemm_pack made of the right operand, with n rounded up
// to a multiple of the kernel's columns; bias: n floats or null; absmax: 0 on entry; m, n, k > 0, k <= 131072. The
// kernels that copy want int8 on a 16-byte boundary and k % 16 == 0.
#define GQC_ROWS(name, columns, async, T)                                                                              \
    GQC_GLOBAL(256)                                                                                                    \
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

// parts[p][i][j] = sum over the contracted indices p * part .. of a(i, k) b(k, j), for part <= 131072, a multiple of
// kChunk. a: lines along k, [m, k], or [k, m]; b: [n, k] or [k, n]. Blocks: tiles of 128 x 128 along x, parts along y.
GQC_GLOBAL(256)
qgemm_parts(const void* a, int64_t a_packed, int64_t a_along_k, const void* b, int64_t b_packed, int64_t b_along_k,
            int64_t m, int64_t n, int64_t k, int64_t part, int32_t* parts) {
    constexpr int kTile = kTileRows * kChunk, kStage = 2 * kTile, kWarpsOfRows = kTileRows / kWarpRows;
    GQC_SHARED(uint8_t, tiles, 2 * kStage);
    // The first half of the threads loads left, the second right.
    const bool is_left = threadIdx.x < kTileThreads;
    const int64_t along_k = is_left ? a_along_k : b_along_k, outer = is_left ? m : n;
    const Operand own(is_left ? a : b, along_k ? outer : k, along_k ? k : outer, is_left ? a_packed : b_packed,
                      along_k != 0);
    const int thread = static_cast<int>(threadIdx.x) % kTileThreads, tile = is_left ? 0 : kTile;
    const int tiles_of_n = static_cast<int>((n + kTileRows - 1) / kTileRows);
    const int64_t row = static_cast<int64_t>(blockIdx.x / tiles_of_n) * kTileRows;
    const int64_t column = static_cast<int64_t>(blockIdx.x % tiles_of_n) * kTileRows;
    const int64_t row_of_own = is_left ? row : column;
    const int64_t first = blockIdx.y * part, last = first + part < k ? first + part : k;
    const int row_of_warp = warp_id() % kWarpsOfRows * kWarpRows;
    const int column_of_warp = warp_id() / kWarpsOfRows * kWarpColumns;
    const bool works = row + row_of_warp < m && column + column_of_warp < n;

    WarpSums sums;
    sums.clear();
    TilePart share;
    share.load(own, thread, row_of_own, first);
    share.store(own, thread, tiles, tile);
    int stage = 0;
#pragma unroll 1
    for (int64_t at = first; at < last; at += kChunk) {
        share.load(own, thread, row_of_own, at + kChunk < last ? at + kChunk : k);
        __syncthreads();
        if (works)
            sums.add(tiles, stage, row_of_warp, [&](int j) {
                const int of_right = column_of_warp + 8 * j + lane_id() / 4;
                return shared_load<uint4>(tiles, stage + kTile + place_of_row(of_right) + lane_id() % 4 * kPiece);
            });
        stage ^= kStage;
        share.store(own, thread, tiles, stage + tile);
    }
    if (!works) return;
    int32_t* out = parts + blockIdx.y * m * n;
#pragma unroll
    for (int of_lane = 0; of_lane < kWarpRows / 8; ++of_lane) {
        const int64_t i = row + row_of_warp + of_lane * 8 + lane_id() / 4;
#pragma unroll
        for (int fragment = 0; fragment < kWarpColumns / 8; ++fragment) {
            const int64_t j = column + column_of_warp + fragment * 8 + lane_id() % 4 * 2;
            const int32_t* pair = &sums.values[of_lane / 2][fragment][of_lane % 2 * 2];
            if (i >= m || j >= n) continue;
            if (n % 2 == 0) {
                global_store<int2>(out + i * n + j, make_int2(pair[0], pair[1]));
            } else {
                out[i * n + j] = pair[0];
                if (j + 1 < n) out[i * n + j + 1] = pair[1];
            }
        }
    }
}
GQC_EXPORT(qgemm_parts)

// Adds the parts, which may be more than int32 holds. Warps of a block share the parts of 32 columns of a row.
template <typename T>
__device__ __forceinline__ void add_parts(const int32_t* parts, int64_t count, int64_t m, int64_t n,
                                          const float* a_scale, const float* b_scale, const float* bias, T* out,
                                          float* absmax) {
    constexpr int kWarps = 8;
    GQC_SHARED(int64_t, sums, kWarps* kWarp);
    GQC_SHARED(uint32_t, scratch, kWarp);
    Epilogue<T> epilogue(a_scale, b_scale, bias, out, m, n);
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
            const float y = epilogue.value(sum, bias ? bias[column] : 0.0f);
            epilogue.saw(y);
            out[row * n + column] = from_float<T>(y);
        }
        __syncthreads();
    }
    epilogue.finish(absmax, scratch);
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
