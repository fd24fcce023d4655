// Symmetric quantization of a tensor to at most 8 bits with one scale (Tango, SC'23, section 3.1).

#include "cuda/absmax.cuh"
#include "cuda/int4.cuh"
#include "cuda/packed_tile.cuh"
#include "cuda/rounding.cuh"

using Int4Tile = PackedTile<2>;

template <typename T>
__device__ __forceinline__ void absmax(const T* x, int64_t n, float* out) {
    GQC_SHARED(uint32_t, scratch, kWarp);
    const bool vectors = is_aligned(x, 16);
    uint32_t seen = 0;
#pragma unroll 1
    for (int64_t first = kEight * grid_thread(); first < n; first += kEight * grid_threads()) {
        float values[kEight];
        load_eight(x + first, count_of_eight(first, n), vectors, values);
#pragma unroll
        for (int i = 0; i < kEight; ++i) seen = larger(seen, magnitude(values[i]));
    }
    raise_absmax(out, seen, scratch);
}

// Eight values as the halves of packed bytes.
__device__ __forceinline__ void store_values(uint8_t* packed, int64_t first, uint2 values, int count, bool vectors) {
    const uint32_t halves = packed_eight(values);
    if (vectors && count == kEight) return global_store<uint32_t>(packed + first / 2, halves);
#pragma unroll
    for (int i = 0; i < kEight / 2; ++i)
        if (2 * i < count) packed[first / 2 + i] = byte_of(halves, i);
}

// Sixteen values, as bytes or as halves of them.
__device__ __forceinline__ void store_whole(int8_t* q, int64_t first, uint4 values) {
    global_store<uint4>(q + first, values);
}
__device__ __forceinline__ void store_whole(uint8_t* packed, int64_t first, uint4 values) {
    global_store<uint2>(packed + first / 2, make_uint2(packed_eight(make_uint2(values.x, values.y)),
                                                       packed_eight(make_uint2(values.z, values.w))));
}

// The values of the elements of a block of random bytes, 0 beyond the last of n.
template <typename T>
__device__ __forceinline__ uint4 rounded_block(const Rounding& round, const RoundingBits& random, const T* x, int64_t n,
                                               int64_t block, bool vectors) {
    const int64_t first = block * kBlockBytes;
    const uint4 bytes = random.words(block);
    float low[kEight], high[kEight];
    load_eight(x + first, count_of_eight(first, n), vectors, low);
    load_eight(x + first + kEight, count_of_eight(first + kEight, n), vectors, high);
    return rounded_sixteen(round, low, high, random, bytes);
}

// A thread rounds a block of random bytes. Q: int8_t, or uint8_t for packed values of rows of even width, which then
// lie side by side.
template <typename T, typename Q>
__device__ __forceinline__ void quantize(const T* x, int64_t n, const float* absmax, float limit, const int64_t* seed,
                                         int64_t node, Q* q, float* scale) {
    const Rounding round(*absmax, limit);
    const RoundingBits random(seed, node);
    if (grid_thread() == 0) *scale = round.scale;
    const bool vectors = is_aligned(x, 16), vector_values = is_aligned(q, 16);
#pragma unroll 1
    for (int64_t block = grid_thread(); block < (n + kBlockBytes - 1) / kBlockBytes; block += grid_threads()) {
        const int64_t first = block * kBlockBytes, second = first + kEight;
        const uint4 values = rounded_block(round, random, x, n, block, vectors);
        if (vector_values && n - first >= kBlockBytes) {
            store_whole(q, first, values);
        } else {
            store_values(q, first, make_uint2(values.x, values.y), count_of_eight(first, n), vector_values);
            store_values(q, second, make_uint2(values.z, values.w), count_of_eight(second, n), vector_values);
        }
    }
}

// For rows of odd width, where a byte's two values may be rounded by two blocks of random bytes: between rounding and
// packing the values lie in shared memory.
template <typename T>
__device__ __forceinline__ void quantize_int4_rows(const T* x, int64_t rows, int64_t width, const float* absmax,
                                                   float limit, const int64_t* seed, int64_t node, uint8_t* packed,
                                                   float* scale) {
    GQC_SHARED(uint8_t, values, 2 * Int4Tile::kBytes + 2 * kBlockBytes);
    const Rounding round(*absmax, limit);
    const RoundingBits random(seed, node);
    if (grid_thread() == 0) *scale = round.scale;
    const bool vectors = is_aligned(x, 16);
    const int64_t n = rows * width, tiles = Int4Tile::tiles(rows, width);
#pragma unroll 1
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Int4Tile tile(t, rows, width);
        int count;
        const int64_t block = tile.value(0, count) / kBlockBytes, last = tile.value(tile.count - 1, count) + count - 1;
        for (int64_t b = block + threadIdx.x; b <= last / kBlockBytes; b += blockDim.x)
            shared_store<uint4>(values, static_cast<int>(b - block) * kBlockBytes,
                                rounded_block(round, random, x, n, b, vectors));
        __syncthreads();
        for (int i = threadIdx.x; i < tile.count; i += blockDim.x) {
            const int at = static_cast<int>(tile.value(i, count) - block * kBlockBytes);
            const uint32_t low = values[at] & 15u, high = count == 2 ? values[at + 1] & 15u : 0u;
            packed[t * Int4Tile::kBytes + i] = static_cast<uint8_t>(low | high << 4);
        }
        __syncthreads();
    }
}

// Byte i of a word of int8 as a float, without a conversion: 2^23 + (value + 128), bit by bit.
__device__ __forceinline__ float value_of(uint32_t word, int i) {
    const uint32_t above = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7540 + i);
    return __fsub_rn(__uint_as_float(above), 8388736.0f);
}

// A thread writes 16 bytes.
template <typename T>
__device__ __forceinline__ void dequantize(const int8_t* q, const float* scale, int64_t n, T* out) {
    constexpr int kCount = 16 / sizeof(T), kWords = kCount / 4;
    const float factor = *scale;
    const int64_t whole = is_aligned(q, kCount) && is_aligned(out, 16) ? n / kCount : 0;
#pragma unroll 1
    for (int64_t i = grid_thread(); i < whole; i += grid_threads()) {
        uint32_t words[kWords];
        if constexpr (kWords == 1) {
            words[0] = global_load<uint32_t>(q + i * kCount);
        } else {
            const uint2 two = global_load<uint2>(q + i * kCount);
            words[0] = two.x, words[1] = two.y;
        }
        float values[kCount];
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] = __fmul_rn(value_of(words[j / 4], j % 4), factor);
        store_vector(out + i * kCount, values);
    }
#pragma unroll 1
    for (int64_t i = whole * kCount + grid_thread(); i < n; i += grid_threads())
        out[i] = from_float<T>(__fmul_rn(static_cast<float>(q[i]), factor));
}

// out: 0 on entry; the largest |x|, NaN if x holds a NaN, else Inf if it holds an Inf.
#define GQC_ABSMAX(SUFFIX, T)                                            \
    GQC_GLOBAL(256) absmax_##SUFFIX(const T* x, int64_t n, float* out) { \
        absmax(x, n, out);                                               \
    }                                                                    \
    GQC_EXPORT(absmax_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_ABSMAX)

// absmax: one float, at least the largest |x|; limit: the largest value; seed: two numbers, or null to round to
// nearest; q: n bytes; scale: one float.
#define GQC_QUANTIZE(SUFFIX, T)                                                                                   \
    GQC_GLOBAL(256)                                                                                               \
    quantize_##SUFFIX(const T* x, int64_t n, const float* absmax, float limit, const int64_t* seed, int64_t node, \
                      int8_t* q, float* scale) {                                                                  \
        quantize(x, n, absmax, limit, seed, node, q, scale);                                                      \
    }                                                                                                             \
    GQC_EXPORT(quantize_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_QUANTIZE)

// As quantize for limit <= 7 and rows of even width, n elements in all; packed: n / 2 bytes.
#define GQC_QUANTIZE_INT4(SUFFIX, T)                                                                                   \
    GQC_GLOBAL(256)                                                                                                    \
    quantize_int4_##SUFFIX(const T* x, int64_t n, const float* absmax, float limit, const int64_t* seed, int64_t node, \
                           uint8_t* packed, float* scale) {                                                            \
        quantize(x, n, absmax, limit, seed, node, packed, scale);                                                      \
    }                                                                                                                  \
    GQC_EXPORT(quantize_int4_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_QUANTIZE_INT4)

// As quantize_int4 for rows of any width; packed: [rows, (width + 1) / 2] bytes.
#define GQC_QUANTIZE_INT4_ROWS(SUFFIX, T)                                                                  \
    GQC_GLOBAL(256)                                                                                        \
    quantize_int4_rows_##SUFFIX(const T* x, int64_t rows, int64_t width, const float* absmax, float limit, \
                                const int64_t* seed, int64_t node, uint8_t* packed, float* scale) {        \
        quantize_int4_rows(x, rows, width, absmax, limit, seed, node, packed, scale);                      \
    }                                                                                                      \
    GQC_EXPORT(quantize_int4_rows_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_QUANTIZE_INT4_ROWS)

// packed: n / 2 bytes, rows of even width; q: n bytes. A thread writes 16 bytes.
GQC_GLOBAL(256) unpack_int4(const uint8_t* packed, int64_t n, int8_t* q) {
    const int64_t whole = is_aligned(packed, 8) && is_aligned(q, 16) ? n / 16 : 0;
#pragma unroll 1
    for (int64_t i = grid_thread(); i < whole; i += grid_threads()) {
        const uint2 halves = global_load<uint2>(packed + i * 8);
        const uint2 low = unpacked_eight(halves.x), high = unpacked_eight(halves.y);
        global_store<uint4>(q + i * 16, make_uint4(low.x, low.y, high.x, high.y));
    }
#pragma unroll 1
    for (int64_t i = whole * 8 + grid_thread(); i < n / 2; i += grid_threads()) {
        const uint2 values = unpacked_eight(packed[i]);
        q[2 * i] = static_cast<int8_t>(byte_of(values.x, 0));
        q[2 * i + 1] = static_cast<int8_t>(byte_of(values.x, 1));
    }
}
GQC_EXPORT(unpack_int4)

// As unpack_int4 for rows of any width; packed: [rows, (width + 1) / 2] bytes; q: rows * width bytes.
GQC_GLOBAL(256) unpack_int4_rows(const uint8_t* packed, int64_t rows, int64_t width, int8_t* q) {
    const int64_t tiles = Int4Tile::tiles(rows, width);
#pragma unroll 1
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Int4Tile tile(t, rows, width);
        for (int i = threadIdx.x; i < tile.count; i += blockDim.x) {
            int count;
            const int64_t at = tile.value(i, count);
            const uint2 values = unpacked_eight(packed[t * Int4Tile::kBytes + i]);
            q[at] = static_cast<int8_t>(byte_of(values.x, 0));
            if (count == 2) q[at + 1] = static_cast<int8_t>(byte_of(values.x, 1));
        }
    }
}
GQC_EXPORT(unpack_int4_rows)

// out: n elements.
#define GQC_DEQUANTIZE(SUFFIX, T)                                                                 \
    GQC_GLOBAL(256) dequantize_##SUFFIX(const int8_t* q, const float* scale, int64_t n, T* out) { \
        dequantize(q, scale, n, out);                                                             \
    }                                                                                             \
    GQC_EXPORT(dequantize_##SUFFIX)
GQC_OF_EACH_TYPE(GQC_DEQUANTIZE)
