// Rows in few bits between their least and their largest element (TinyKG, RecSys'22, equations 3 and 4; EXACT,
// ICLR'22), the same values as csrc/cpu/kernels/compress_rows.cpp gives.

#include "cuda/bits.cuh"
#include "cuda/rounding.cuh"

// Floats order as these integers do, and a NaN stands beyond Inf or -Inf. The map is its own inverse.
__device__ __forceinline__ int32_t ordered(int32_t bits) {
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

struct Ends {
    int32_t least = 0x7fffffff, most = -0x7fffffff - 1;

    __device__ __forceinline__ void add(int32_t low, int32_t high) {
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
};

// To the next bfloat16 below; Inf stays.
__device__ __forceinline__ float bfloat16_below(float x) {
    const uint32_t bits = __float_as_uint(x), up = bits >> 31 ? 0xffffu : 0u;
    return __uint_as_float((bits + up) & 0xffff0000u);
}

// What a row keeps; NaN where an element is not finite or the range overflows.
struct RowStats {
    float zero, range;

    __device__ __forceinline__ RowStats(const Ends& ends, bool in_bfloat16)
        : zero(__int_as_float(ordered(ends.least))) {
        if (is_finite(zero) && in_bfloat16) zero = bfloat16_below(zero);
        range = __fsub_rn(__int_as_float(ordered(ends.most)), zero);
        if (is_finite(range) && in_bfloat16) range = -bfloat16_below(-range);
        if (!is_finite(zero) || !is_finite(range)) zero = range = __uint_as_float(0x7fc00000u);
    }

    __device__ __forceinline__ void keep(int64_t row, bool in_bfloat16, void* zeros, void* ranges) const {
        if (in_bfloat16) {
            static_cast<bfloat16*>(zeros)[row] = from_float<bfloat16>(zero);
            static_cast<bfloat16*>(ranges)[row] = from_float<bfloat16>(range);
        } else {
            static_cast<float*>(zeros)[row] = zero;
            static_cast<float*>(ranges)[row] = range;
        }
    }
};

__device__ __forceinline__ float stat(const void* stats, int64_t row, bool in_bfloat16) {
    return in_bfloat16 ? to_float(static_cast<const bfloat16*>(stats)[row]) : static_cast<const float*>(stats)[row];
}

// The lanes that share a row: 1, 2, .. 32 neighbours, or a block. A lane takes 8 elements of each 8 * size.
struct RowTeam {
    int size, lane;
    int64_t row, stride;  // of the team, and from one of its rows to the next

    __device__ __forceinline__ explicit RowTeam(int64_t lanes)
        : size(static_cast<int>(lanes)),
          lane(static_cast<int>(threadIdx.x) & (size - 1)),
          row(grid_thread() / size),
          stride(grid_threads() / size) {}
};

// Random bits of 8 elements from one on that need not begin a block.
__device__ __forceinline__ uint4 bits_from(const RoundingBits& random, int64_t element) {
    const uint4 first = random.words(element / kBlockElements);
    const int skipped = static_cast<int>(element % kBlockElements);
    if (skipped == 0) return first;
    const uint4 second = random.words(element / kBlockElements + 1);
    uint32_t w[kBlockElements] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = skipped & 4 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = skipped & 2 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], skipped % 2 * 16);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

// Eight values of `bits` bits, low bits first.
__device__ __forceinline__ uint2 packed_group(uint2 values, int64_t bits) {
    if (bits == 1) return make_uint2(packed_four<1>(values.x) | packed_four<1>(values.y) << 4, 0u);
    if (bits == 2) return make_uint2(packed_four<2>(values.x) | packed_four<2>(values.y) << 8, 0u);
    if (bits == 4) return make_uint2(packed_four<4>(values.x) | packed_four<4>(values.y) << 16, 0u);
    return values;
}
__device__ __forceinline__ uint2 unpacked_group(uint2 packed, int64_t bits) {
    if (bits == 1) return make_uint2(unpacked_four<1>(packed.x), unpacked_four<1>(packed.x >> 4));
    if (bits == 2) return make_uint2(unpacked_four<2>(packed.x), unpacked_four<2>(packed.x >> 8));
    if (bits == 4) return make_uint2(unpacked_four<4>(packed.x), unpacked_four<4>(packed.x >> 16));
    return packed;
}

// Bytes of a group, in one access where they are `whole`.
__device__ __forceinline__ void store_group(uint8_t* to, uint2 packed, int count, int64_t bits, bool whole) {
    if (whole && count == kEight) {
        if (bits == 1) return global_store<uint8_t>(to, static_cast<uint8_t>(packed.x));
        if (bits == 2) return global_store<uint16_t>(to, static_cast<uint16_t>(packed.x));
        if (bits == 4) return global_store<uint32_t>(to, packed.x);
        return global_store<uint2>(to, packed);
    }
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        if (i * 8 < count * bits) to[i] = byte_of(i < 4 ? packed.x : packed.y, i % 4);
}
__device__ __forceinline__ uint2 load_group(const uint8_t* from, int count, int64_t bits, bool whole) {
    if (whole && count == kEight) {
        if (bits == 1) return make_uint2(global_load<uint8_t>(from), 0u);
        if (bits == 2) return make_uint2(global_load<uint16_t>(from), 0u);
        if (bits == 4) return make_uint2(global_load<uint32_t>(from), 0u);
        return global_load<uint2>(from);
    }
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < kEight; ++i)
        if (i * 8 < count * bits) words[i / 4] |= static_cast<uint32_t>(from[i]) << (i % 4 * 8);
    return make_uint2(words[0], words[1]);
}

// Whether the bytes of a group of each row are on a multiple of their number.
__device__ __forceinline__ bool whole_groups(const uint8_t* packed, int64_t bytes, int64_t bits) {
    return is_aligned(packed, static_cast<int>(bits)) && (bytes & (bits - 1)) == 0;
}

template <typename T>
__device__ __forceinline__ bool whole_vectors(const T* x, int64_t width) {
    return is_aligned(x, 16) && width % static_cast<int>(16 / sizeof(T)) == 0;
}

template <typename T>
__device__ __forceinline__ void compress(const T* x, int64_t rows, int64_t width, int64_t bits, const int64_t* seed,
                                         int64_t node, int64_t in_bfloat16, int64_t lanes, uint8_t* packed, void* zeros,
                                         void* ranges) {
    GQC_SHARED(int32_t, ends_of_warps, 2 * kWarp);
    const RowTeam team(lanes);
    const RoundingBits random(seed, node);
    const float bins = static_cast<float>((1 << bits) - 1);
    const int64_t bytes = (width * bits + 7) / 8, of_team = static_cast<int64_t>(team.size) * kEight;
    const bool vectors = whole_vectors(x, width), whole = whole_groups(packed, bytes, bits);
    const bool is_block = team.size > kWarp;
    // All lanes of a warp or block take the same number of steps.
    const int64_t first_row = team.row - (is_block ? 0 : lane_id() / team.size);
#pragma unroll 1
    for (int64_t start = first_row; start < rows; start += team.stride) {
        const int64_t row = start + (team.row - first_row);
        const T* from = x + row * width;
        const int64_t end = row < rows ? width : 0;
        Ends ends;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < end; at += of_team) {
            const int count = count_of_eight(at, width);
            float values[kEight];
            load_eight(from + at, count, vectors, values);
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                const int32_t key = ordered(__float_as_int(values[i]));
                if (i < count) ends.add(key, key);
            }
        }
        for (int distance = (is_block ? kWarp : team.size) / 2; distance; distance /= 2)
            ends.add(__shfl_xor_sync(kAllLanes, ends.least, distance), __shfl_xor_sync(kAllLanes, ends.most, distance));
        if (is_block) {
            __syncthreads();  // the row before has been read
            if (lane_id() == 0) {
                ends_of_warps[2 * warp_id()] = ends.least;
                ends_of_warps[2 * warp_id() + 1] = ends.most;
            }
            __syncthreads();
            for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
                ends.add(ends_of_warps[2 * warp], ends_of_warps[2 * warp + 1]);
        }
        if (row >= rows) continue;
        const RowStats stats(ends, in_bfloat16);
        if (team.lane == 0) stats.keep(row, in_bfloat16, zeros, ranges);
        const float quotient = bins / stats.range, factor = is_finite(quotient) ? quotient : 0.0f;
        const float zero = is_finite(stats.zero) ? stats.zero : 0.0f;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < width; at += of_team) {
            const int count = count_of_eight(at, width);
            float values[kEight];
            load_eight(from + at, count, vectors, values);
            const uint4 words = bits_from(random, row * width + at);
            const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
            uint32_t q[kEight];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                const uint32_t above_128 = __byte_perm(pairs[i / 2], kHighBytesOf128, i % 2 ? 0x7632 : 0x7610);
                const float r = __fsub_rn(__uint_as_float(above_128), 128.0f);
                const float y = __fadd_rn(__fmul_rn(__fsub_rn(values[i], zero), factor), r);
                const float floor = __fadd_rd(fminf(fmaxf(y, 0.0f), bins), 12582912.0f);  // 3 * 2^22
                q[i] = i < count ? __float_as_uint(floor) : 0u;
            }
            const uint2 eight = make_uint2(first_bytes(q[0], q[1], q[2], q[3]), first_bytes(q[4], q[5], q[6], q[7]));
            store_group(packed + row * bytes + at * bits / 8, packed_group(eight, bits), count, bits, whole);
        }
    }
}

// Statistics in bfloat16 may lie beyond the largest float16.
template <typename T>
__device__ __forceinline__ float within(float y) {
    return y;
}
template <>
__device__ __forceinline__ float within<float16>(float y) {
    y = y > 65504.0f ? 65504.0f : y;
    return y < -65504.0f ? -65504.0f : y;
}

template <typename T>
__device__ __forceinline__ void decompress(const uint8_t* packed, const void* zeros, const void* ranges,
                                           int64_t in_bfloat16, int64_t rows, int64_t width, int64_t bits,
                                           int64_t lanes, T* out) {
    const RowTeam team(lanes);
    const float bins = static_cast<float>((1 << bits) - 1);
    const int64_t bytes = (width * bits + 7) / 8, of_team = static_cast<int64_t>(team.size) * kEight;
    const bool vectors = whole_vectors(out, width), whole = whole_groups(packed, bytes, bits);
#pragma unroll 1
    for (int64_t row = team.row; row < rows; row += team.stride) {
        const float zero = stat(zeros, row, in_bfloat16), step = stat(ranges, row, in_bfloat16) / bins;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < width; at += of_team) {
            const int count = count_of_eight(at, width);
            const uint2 group = load_group(packed + row * bytes + at * bits / 8, count, bits, whole);
            const uint2 eight = unpacked_group(group, bits);
            float values[kEight];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                // The byte as a float, without a conversion: 2^23 + value, bit by bit.
                const uint32_t above = __byte_perm(i < 4 ? eight.x : eight.y, 0x4b000000u, 0x7540 + i % 4);
                const float q = __fsub_rn(__uint_as_float(above), 8388608.0f);
                values[i] = within<T>(__fadd_rn(__fmul_rn(q, step), zero));
            }
            store_eight(out + row * width + at, values, count, vectors);
        }
    }
}

// x: [rows, width]; bits: 1, 2, 4 or 8; seed: two numbers, or null to round to nearest; packed: [rows, (width * bits +
// 7) / 8] bytes; zeros, ranges: [rows] floats, or bfloat16; lanes: threads that share a row, a power of two up to 32,
// or all 256. rows, width > 0.
#define GQC_COMPRESS_ROWS(SUFFIX, T)                                                                                 \
    GQC_GLOBAL(256, 2)                                                                                               \
    compress_rows_##SUFFIX(const T* x, int64_t rows, int64_t width, int64_t bits, const int64_t* seed, int64_t node, \
                           int64_t in_bfloat16, int64_t lanes, uint8_t* packed, void* zeros, void* ranges) {         \
        compress(x, rows, width, bits, seed, node, in_bfloat16, lanes, packed, zeros, ranges);                       \
    }                                                                                                                \
    GQC_EXPORT(compress_rows_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_COMPRESS_ROWS)

#define GQC_DECOMPRESS_ROWS(SUFFIX, T)                                                                          \
    GQC_GLOBAL(256)                                                                                             \
    decompress_rows_##SUFFIX(const uint8_t* packed, const void* zeros, const void* ranges, int64_t in_bfloat16, \
                             int64_t rows, int64_t width, int64_t bits, int64_t lanes, T* out) {                \
        decompress(packed, zeros, ranges, in_bfloat16, rows, width, bits, lanes, out);                          \
    }                                                                                                           \
    GQC_EXPORT(decompress_rows_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_DECOMPRESS_ROWS)
