// Full-precision products of runs of rows with one matrix of a stack each, where the lengths of the runs are known to
// the GPU only: a grid for as many tiles as there can be, each of which finds its run.

#include "cuda/device.cuh"

constexpr int kThreads = 256;
constexpr int kInner = 16;     // products that are added from one load of the tiles
constexpr int kColumns = 64;   // of an output tile
constexpr int kPad = 4;        // floats between rows of a tile, which keeps stores to it off one another's banks
constexpr int kRowTile = 128;  // rows of an output tile of segment_mm

// starts[r] = first row of run r, tiles[r] = number of its first tile of `tile_rows` rows; both have an end. Runs that
// are negative or do not add up to `rows` leave tiles[runs] = -1. One warp.
GQC_GLOBAL(kWarp)
segment_runs(const int64_t* lengths, int64_t runs, int64_t rows, int64_t tile_rows, int64_t* starts, int64_t* tiles) {
    int64_t start = 0, tile = 0;
    bool valid = true;
    for (int64_t first = 0; first < runs; first += kWarp) {
        const int64_t run = first + lane_id();
        const int64_t length = run < runs ? lengths[run] : 0;
        valid = valid && length >= 0 && length <= rows;
        int64_t row_sum = length, tile_sum = (length + tile_rows - 1) / tile_rows;
        const int64_t own_tiles = tile_sum;
#pragma unroll
        for (int distance = 1; distance < kWarp; distance *= 2) {
            const int64_t rows_before = __shfl_up_sync(kAllLanes, row_sum, distance);
            const int64_t tiles_before = __shfl_up_sync(kAllLanes, tile_sum, distance);
            if (lane_id() >= distance) row_sum += rows_before, tile_sum += tiles_before;
        }
        if (run < runs) {
            starts[run] = start + row_sum - length;
            tiles[run] = tile + tile_sum - own_tiles;
        }
        start += __shfl_sync(kAllLanes, row_sum, kWarp - 1);
        tile += __shfl_sync(kAllLanes, tile_sum, kWarp - 1);
        valid = __all_sync(kAllLanes, valid);
    }
    if (lane_id() == 0) {
        starts[runs] = start;
        tiles[runs] = valid && start == rows ? tile : -1;
    }
}
GQC_EXPORT(segment_runs)

// The run of a tile: the last one that does not begin behind it.
__device__ __forceinline__ int64_t run_of(const int64_t* tiles, int64_t runs, int64_t tile) {
    int64_t low = 0, high = runs;  // tiles[low] <= tile < tiles[high]
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (tiles[middle] <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// Sums of an output tile of 16 * R rows and kColumns columns: a thread has R rows of 4. left(k, row) and right(k,
// column) give the operands' elements, 0 outside of them, for k < depth.
template <int R, typename Left, typename Right, typename LeftTile, typename RightTile>
__device__ __forceinline__ void multiply(int64_t depth, const Left& left, const Right& right, bool inner_is_row,
                                         LeftTile& left_tile, RightTile& right_tile, float (&sum)[R][4]) {
    constexpr int kRows = 16 * R;
    const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * R, column = thread % 16 * 4;
    float next_left[R], next_right[4];
    // Neighbouring threads read what stands side by side in memory: products of one row, or rows of one product.
    const auto left_k = [&](int i) { return inner_is_row ? thread % 16 : (thread + i * kThreads) / kRows; };
    const auto left_row = [&](int i) { return inner_is_row ? thread / 16 + 16 * i : (thread + i * kThreads) % kRows; };
    const auto fetch = [&](int64_t k) {
#pragma unroll
        for (int i = 0; i < R; ++i) next_left[i] = k + left_k(i) < depth ? left(k + left_k(i), left_row(i)) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = thread / kColumns + 4 * i;
            next_right[i] = k + at < depth ? right(k + at, thread % kColumns) : 0.0f;
        }
    };
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    fetch(0);
    for (int64_t k = 0; k < depth; k += kInner) {
#pragma unroll
        for (int i = 0; i < R; ++i) left_tile[left_k(i) * (kRows + kPad) + left_row(i)] = next_left[i];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            right_tile[(thread / kColumns + 4 * i) * kColumns + thread % kColumns] = next_right[i];
        __syncthreads();
        fetch(k + kInner);
#pragma unroll
        for (int at = 0; at < kInner; ++at) {
            float a[R];
#pragma unroll
            for (int i = 0; i < R; i += 4) {
                const float4 four = shared_load<float4>(left_tile, at * (kRows + kPad) + row + i);
                a[i] = four.x, a[i + 1] = four.y, a[i + 2] = four.z, a[i + 3] = four.w;
            }
            const float4 b = shared_load<float4>(right_tile, at * kColumns + column);
#pragma unroll
            for (int i = 0; i < R; ++i) {
                sum[i][0] = __fmaf_rn(a[i], b.x, sum[i][0]);
                sum[i][1] = __fmaf_rn(a[i], b.y, sum[i][1]);
                sum[i][2] = __fmaf_rn(a[i], b.z, sum[i][2]);
                sum[i][3] = __fmaf_rn(a[i], b.w, sum[i][3]);
            }
        }
        __syncthreads();
    }
}

constexpr uint32_t kNaN = 0x7fc00000u;

// out[i] = a[i] @ b[r] for the rows i of run r; a is [rows, inner], b has the strides of its three axes, out is
// [rows, columns]. With `order`, row i of the runs stands at order[i] in a and out. Tiles of 128 rows (blockIdx.x) and
// 64 columns (blockIdx.y); starts and tiles are segment_runs's. Where the runs are wrong, out is NaN.
GQC_GLOBAL(kThreads, 2)
segment_mm(const int64_t* starts, const int64_t* tiles, int64_t runs, int64_t rows, int64_t inner, int64_t columns,
           const float* a, const int64_t* order, const float* b, int64_t b_run, int64_t b_inner, int64_t b_column,
           float* out) {
    constexpr int R = kRowTile / 16;
    GQC_SHARED(float, left_tile, kInner*(kRowTile + kPad));
    GQC_SHARED(float, right_tile, kInner* kColumns);
    const int64_t tile = blockIdx.x, end = tiles[runs], first_column = static_cast<int64_t>(blockIdx.y) * kColumns;
    const bool valid = end >= 0;
    if (valid && tile >= end) return;
    const int64_t run = valid ? run_of(tiles, runs, tile) : 0;
    const int64_t first_row = valid ? starts[run] + (tile - tiles[run]) * kRowTile : tile * kRowTile;
    const int64_t last_row = valid ? starts[run + 1] : rows;
    const auto row_at = [&](int64_t i) { return order ? order[i] : i; };
    float sum[R][4];
    multiply<R>(
        valid ? inner : 0,
        [&](int64_t k, int row) { return first_row + row < last_row ? a[row_at(first_row + row) * inner + k] : 0.0f; },
        [&](int64_t k, int column) {
            const int64_t at = first_column + column;
            return at < columns ? b[run * b_run + k * b_inner + at * b_column] : 0.0f;
        },
        true, left_tile, right_tile, sum);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t column = first_column + thread % 16 * 4;
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int64_t row = first_row + thread / 16 * R + i;
        if (row >= last_row) break;
        float* const to = out + row_at(row) * columns;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j < columns) to[column + j] = valid ? sum[i][j] : __uint_as_float(kNaN);
        }
    }
}
GQC_EXPORT(segment_mm)

// parts[t] = a[rows of tile t]^T @ grad[rows of tile t], [inner, columns]: row tiles of tile_rows rows (blockIdx.x)
// and, by blockIdx.y and z, output tiles of 64 x 64. The rest is as in segment_mm.
GQC_GLOBAL(kThreads, 2)
segment_mm_bwd_b(const int64_t* starts, const int64_t* tiles, int64_t runs, int64_t tile_rows, int64_t inner,
                 int64_t columns, const float* a, const float* grad, const int64_t* order, float* parts) {
    constexpr int R = 4;
    GQC_SHARED(float, left_tile, kInner * (16 * R + kPad));
    GQC_SHARED(float, right_tile, kInner* kColumns);
    const int64_t tile = blockIdx.x;
    if (tile >= tiles[runs]) return;
    const int64_t run = run_of(tiles, runs, tile), first_row = starts[run] + (tile - tiles[run]) * tile_rows;
    const int64_t first_inner = static_cast<int64_t>(blockIdx.y) * 16 * R;
    const int64_t first_column = static_cast<int64_t>(blockIdx.z) * kColumns;
    const auto row_at = [&](int64_t k) { return order ? order[first_row + k] : first_row + k; };
    float sum[R][4];
    multiply<R>(
        min(tile_rows, starts[run + 1] - first_row),
        [&](int64_t k, int row) { return first_inner + row < inner ? a[row_at(k) * inner + first_inner + row] : 0.0f; },
        [&](int64_t k, int column) {
            return first_column + column < columns ? grad[row_at(k) * columns + first_column + column] : 0.0f;
        },
        false, left_tile, right_tile, sum);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t column = first_column + thread % 16 * 4;
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const int64_t row = first_inner + thread / 16 * R + i;
        if (row >= inner) break;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j < columns) parts[(tile * inner + row) * columns + column + j] = sum[i][j];
        }
    }
}
GQC_EXPORT(segment_mm_bwd_b)

// out[r] = sum of the parts of run r, `size` elements each, in order; NaN where the runs are wrong.
GQC_GLOBAL(kThreads)
sum_of_parts(const int64_t* tiles, int64_t runs, int64_t size, const float* parts, float* out) {
    const bool valid = tiles[runs] >= 0;
    for (int64_t i = grid_thread(); i < runs * size; i += grid_threads()) {
        const int64_t run = i / size, at = i - run * size;
        float sum = valid ? 0.0f : __uint_as_float(kNaN);
        if (valid) {
#pragma unroll 4
            for (int64_t tile = tiles[run]; tile < tiles[run + 1]; ++tile) sum += parts[tile * size + at];
        }
        out[i] = sum;
    }
}
GQC_EXPORT(sum_of_parts)
