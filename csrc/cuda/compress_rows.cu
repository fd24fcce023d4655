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
        : zero(__fadd_rn(__int_as_float(ordered(ends.least)), 0.0f)) {  // no -0
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

// The lanes that share a run: 1, 2, .. 32 neighbours, or a block. A lane takes 8 elements of each 8 * size.
struct RunTeam {
    int size, lane;
    int64_t run, stride;  // of the team, and from one of its runs to the next

    __device__ __forceinline__ explicit RunTeam(int64_t lanes)
        : size(static_cast<int>(lanes)),
          lane(static_cast<int>(threadIdx.x) & (size - 1)),
          run(grid_thread() / size),
          stride(grid_threads() / size) {}
};

// A row's elements in groups, which teams share among them. A run is a group of a row.
struct Runs {
    int64_t width, group, bits, of_row, bytes;  // bytes: of a packed row

    __device__ __forceinline__ Runs(int64_t width, int64_t group, int64_t bits)
        : width(width), group(group), bits(bits), of_row((width + group - 1) / group), bytes((width * bits + 7) / 8) {}
};

struct Run {
    int64_t first, byte, random, count;  // its first element, byte and byte of random bits, and its elements

    __device__ __forceinline__ Run(const Runs& runs, int64_t run) {
        const int64_t row = runs.of_row == 1 ? run : run / runs.of_row, column = (run - row * runs.of_row) * runs.group;
        first = row * runs.width + column;
        byte = row * runs.bytes + column * runs.bits / 8;
        random = row * (runs.width + runs.width % 2) + column;
        count = runs.width - column < runs.group ? runs.width - column : runs.group;
    }
};

// 16 bits of element i of 8: its byte and below it that of its neighbour. Without a seed, a half.
__device__ __forceinline__ int32_t fraction(const RoundingBits& random, uint2 bytes, int i) {
    constexpr uint32_t kOfPair[4] = {0x4401, 0x4410, 0x4423, 0x4432};
    const uint32_t own = __byte_perm(i < 4 ? bytes.x : bytes.y, 0u, kOfPair[i % 4]);
    return static_cast<int32_t>(random.stochastic ? own : 0x8000u);
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
__device__ __forceinline__ void compress(const T* x, int64_t rows, const Runs& runs, const int64_t* seed, int64_t node,
                                         int64_t in_bfloat16, int64_t lanes, uint8_t* packed, void* zeros,
                                         void* ranges) {
    GQC_SHARED(int32_t, ends_of_warps, 2 * kWarp);
    const RunTeam team(lanes);
    const RoundingBits random(seed, node);
    const int64_t bits = runs.bits, all = rows * runs.of_row, of_team = static_cast<int64_t>(team.size) * kEight;
    const float bins = static_cast<float>((1 << bits) - 1);
    const bool vectors = whole_vectors(x, runs.width), whole = whole_groups(packed, runs.bytes, bits);
    const bool is_block = team.size > kWarp;
    // All lanes of a warp or block take the same number of steps.
    const int64_t first_run = team.run - (is_block ? 0 : lane_id() / team.size);
#pragma unroll 1
    for (int64_t start = first_run; start < all; start += team.stride) {
        const int64_t index = start + (team.run - first_run);
        const Run run(runs, index);
        const T* from = x + run.first;
        const int64_t end = index < all ? run.count : 0;
        Ends ends;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < end; at += of_team) {
            const int count = count_of_eight(at, end);
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
            __syncthreads();  // the run before has been read
            if (lane_id() == 0) {
                ends_of_warps[2 * warp_id()] = ends.least;
                ends_of_warps[2 * warp_id() + 1] = ends.most;
            }
            __syncthreads();
            for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
                ends.add(ends_of_warps[2 * warp], ends_of_warps[2 * warp + 1]);
        }
        if (index >= all) continue;
        const RowStats stats(ends, in_bfloat16);
        if (team.lane == 0) stats.keep(index, in_bfloat16, zeros, ranges);
        const float quotient = 65536.0f * bins / stats.range, factor = is_finite(quotient) ? quotient : 0.0f;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < end; at += of_team) {
            const int count = count_of_eight(at, end);
            float values[kEight];
            load_eight(from + at, count, vectors, values);
            const uint2 bytes = random.eight_from(run.random + at);
            uint32_t q[kEight];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                const int32_t fixed = __float2int_rn(__fmul_rn(__fsub_rn(values[i], stats.zero), factor));
                const int32_t value = (fixed + fraction(random, bytes, i)) >> 16;
                q[i] = i < count && factor != 0.0f ? static_cast<uint32_t>(min(value, 255)) : 0u;
            }
            const uint2 eight = make_uint2(first_bytes(q[0], q[1], q[2], q[3]), first_bytes(q[4], q[5], q[6], q[7]));
            store_group(packed + run.byte + at * bits / 8, packed_group(eight, bits), count, bits, whole);
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
                                           int64_t in_bfloat16, int64_t rows, const Runs& runs, int64_t lanes, T* out) {
    const RunTeam team(lanes);
    const int64_t bits = runs.bits, all = rows * runs.of_row, of_team = static_cast<int64_t>(team.size) * kEight;
    const float bins = static_cast<float>((1 << bits) - 1);
    const bool vectors = whole_vectors(out, runs.width), whole = whole_groups(packed, runs.bytes, bits);
#pragma unroll 1
    for (int64_t index = team.run; index < all; index += team.stride) {
        const Run run(runs, index);
        const float zero = stat(zeros, index, in_bfloat16), step = stat(ranges, index, in_bfloat16) / bins;
#pragma unroll 1
        for (int64_t at = team.lane * kEight; at < run.count; at += of_team) {
            const int count = count_of_eight(at, run.count);
            const uint2 group = load_group(packed + run.byte + at * bits / 8, count, bits, whole);
            const uint2 eight = unpacked_group(group, bits);
            float values[kEight];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                // The byte as a float, without a conversion: 2^23 + value, bit by bit.
                const uint32_t above = __byte_perm(i < 4 ? eight.x : eight.y, 0x4b000000u, 0x7540 + i % 4);
                const float q = __fsub_rn(__uint_as_float(above), 8388608.0f);
                values[i] = within<T>(__fadd_rn(__fmul_rn(q, step), zero));
            }
            store_eight(out + run.first + at, values, count, vectors);
        }
    }
}

// x: [rows, width]; group: elements of a row that share zero and range, a multiple of 8 or at least the width; bits: 1,
// 2, 4 or 8; seed: two numbers, or null to round to nearest; packed: [rows, (width * bits + 7) / 8] bytes; zeros,
// ranges: [rows, groups of a row] floats, or bfloat16; lanes: threads that share a group, a power of two up to 32, or
// all 256. rows, width > 0.
#define GQC_COMPRESS_ROWS(SUFFIX, T)                                                                                  \
    GQC_GLOBAL(256, 4)                                                                                                \
    compress_rows_##SUFFIX(const T* x, int64_t rows, int64_t width, int64_t group, int64_t bits, const int64_t* seed, \
                           int64_t node, int64_t in_bfloat16, int64_t lanes, uint8_t* packed, void* zeros,            \
                           void* ranges) {                                                                            \
        compress(x, rows, Runs(width, group, bits), seed, node, in_bfloat16, lanes, packed, zeros, ranges);           \
    }                                                                                                                 \
    GQC_EXPORT(compress_rows_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_COMPRESS_ROWS)

#define GQC_DECOMPRESS_ROWS(SUFFIX, T)                                                                          \
    GQC_GLOBAL(256)                                                                                             \
    decompress_rows_##SUFFIX(const uint8_t* packed, const void* zeros, const void* ranges, int64_t in_bfloat16, \
                             int64_t rows, int64_t width, int64_t group, int64_t bits, int64_t lanes, T* out) { \
        decompress(packed, zeros, ranges, in_bfloat16, rows, Runs(width, group, bits), lanes, out);             \
    }                                                                                                           \
    GQC_EXPORT(decompress_rows_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_DECOMPRESS_ROWS)
