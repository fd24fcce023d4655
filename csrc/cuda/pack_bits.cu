// Rows of values of 1, 2 or 4 bits to and from packed bytes.

#include "cuda/bits.cuh"
#include "cuda/packed_tile.cuh"
#include "cuda/vector.cuh"

// The byte that packs `count` values.
template <int kBits>
__device__ __forceinline__ uint8_t packed_byte(const uint8_t* values, int64_t count) {
    uint32_t byte = 0;
#pragma unroll
    for (int i = 0; i < 8 / kBits; ++i)
        if (i < count) byte |= (values[i] & ((1u << kBits) - 1u)) << (i * kBits);
    return static_cast<uint8_t>(byte);
}

template <int kBits>
__device__ __forceinline__ void unpack_byte(uint32_t byte, int64_t count, uint8_t* values) {
#pragma unroll
    for (int i = 0; i < 8 / kBits; ++i)
        if (i < count) values[i] = static_cast<uint8_t>(byte >> (i * kBits) & ((1u << kBits) - 1u));
}

// What 16 values take, as the word that a thread writes or reads.
template <int kBits>
struct Sixteen;
template <>
struct Sixteen<1> {
    using Word = uint16_t;
    static __device__ __forceinline__ Word join(const uint32_t (&four)[4]) {
        return static_cast<Word>(four[0] | four[1] << 4 | four[2] << 8 | four[3] << 12);
    }
    static __device__ __forceinline__ uint32_t four(Word word, int i) { return static_cast<uint32_t>(word) >> (4 * i); }
};
template <>
struct Sixteen<2> {
    using Word = uint32_t;
    static __device__ __forceinline__ Word join(const uint32_t (&four)[4]) {
        return four[0] | four[1] << 8 | four[2] << 16 | four[3] << 24;
    }
    static __device__ __forceinline__ uint32_t four(Word word, int i) { return word >> (8 * i); }
};
template <>
struct Sixteen<4> {
    using Word = uint2;
    static __device__ __forceinline__ Word join(const uint32_t (&four)[4]) {
        return make_uint2(four[0] | four[1] << 16, four[2] | four[3] << 16);
    }
    static __device__ __forceinline__ uint32_t four(Word word, int i) {
        return (i < 2 ? word.x : word.y) >> (16 * (i % 2));
    }
};

// One row of n values.
template <int kBits>
__device__ __forceinline__ void pack(const uint8_t* values, int64_t n, uint8_t* packed) {
    using Word = typename Sixteen<kBits>::Word;
    constexpr int kOfByte = 8 / kBits;
    const int64_t whole = is_aligned(values, 16) && is_aligned(packed, sizeof(Word)) ? n / 16 : 0;
#pragma unroll 1
    for (int64_t i = grid_thread(); i < whole; i += grid_threads()) {
        const uint4 v = global_load<uint4>(values + i * 16);
        const uint32_t four[4] = {packed_four<kBits>(v.x), packed_four<kBits>(v.y), packed_four<kBits>(v.z),
                                  packed_four<kBits>(v.w)};
        global_store<Word>(packed + i * sizeof(Word), Sixteen<kBits>::join(four));
    }
#pragma unroll 1
    for (int64_t i = whole * sizeof(Word) + grid_thread(); i * kOfByte < n; i += grid_threads())
        packed[i] = packed_byte<kBits>(values + i * kOfByte, n - i * kOfByte);
}

template <int kBits>
__device__ __forceinline__ void unpack(const uint8_t* packed, int64_t n, uint8_t* values) {
    using Word = typename Sixteen<kBits>::Word;
    constexpr int kOfByte = 8 / kBits;
    const int64_t whole = is_aligned(values, 16) && is_aligned(packed, sizeof(Word)) ? n / 16 : 0;
#pragma unroll 1
    for (int64_t i = grid_thread(); i < whole; i += grid_threads()) {
        const Word word = global_load<Word>(packed + i * sizeof(Word));
        uint32_t four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = unpacked_four<kBits>(Sixteen<kBits>::four(word, j));
        global_store<uint4>(values + i * 16, make_uint4(four[0], four[1], four[2], four[3]));
    }
#pragma unroll 1
    for (int64_t i = whole * sizeof(Word) + grid_thread(); i * kOfByte < n; i += grid_threads())
        unpack_byte<kBits>(packed[i], n - i * kOfByte, values + i * kOfByte);
}

// Rows that end within a byte.
template <int kBits>
__device__ __forceinline__ void pack_rows(const uint8_t* values, int64_t rows, int64_t width, uint8_t* packed) {
    using Tile = PackedTile<8 / kBits>;
    const int64_t tiles = Tile::tiles(rows, width);
#pragma unroll 1
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile tile(t, rows, width);
        for (int i = threadIdx.x; i < tile.count; i += blockDim.x) {
            int count;
            const int64_t at = tile.value(i, count);
            packed[t * Tile::kBytes + i] = packed_byte<kBits>(values + at, count);
        }
    }
}

template <int kBits>
__device__ __forceinline__ void unpack_rows(const uint8_t* packed, int64_t rows, int64_t width, uint8_t* values) {
    using Tile = PackedTile<8 / kBits>;
    const int64_t tiles = Tile::tiles(rows, width);
#pragma unroll 1
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Tile tile(t, rows, width);
        for (int i = threadIdx.x; i < tile.count; i += blockDim.x) {
            int count;
            const int64_t at = tile.value(i, count);
            unpack_byte<kBits>(packed[t * Tile::kBytes + i], count, values + at);
        }
    }
}

// values: n or rows * width bytes, of which the low bits count; packed: bytes of one row, or of rows.
#define GQC_BITS(BITS)                                                                                             \
    GQC_GLOBAL(256) pack_bits_##BITS(const uint8_t* values, int64_t n, uint8_t* packed) {                          \
        pack<BITS>(values, n, packed);                                                                             \
    }                                                                                                              \
    GQC_EXPORT(pack_bits_##BITS)                                                                                   \
    GQC_GLOBAL(256) pack_bits_rows_##BITS(const uint8_t* values, int64_t rows, int64_t width, uint8_t* packed) {   \
        pack_rows<BITS>(values, rows, width, packed);                                                              \
    }                                                                                                              \
    GQC_EXPORT(pack_bits_rows_##BITS)                                                                              \
    GQC_GLOBAL(256) unpack_bits_##BITS(const uint8_t* packed, int64_t n, uint8_t* values) {                        \
        unpack<BITS>(packed, n, values);                                                                           \
    }                                                                                                              \
    GQC_EXPORT(unpack_bits_##BITS)                                                                                 \
    GQC_GLOBAL(256) unpack_bits_rows_##BITS(const uint8_t* packed, int64_t rows, int64_t width, uint8_t* values) { \
        unpack_rows<BITS>(packed, rows, width, values);                                                            \
    }                                                                                                              \
    GQC_EXPORT(unpack_bits_rows_##BITS)
GQC_BITS(1)
GQC_BITS(2)
GQC_BITS(4)
