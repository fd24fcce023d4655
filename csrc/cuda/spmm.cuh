// SPMM with a sum over the entries of a row, for layouts in which each lane reads a run of neighbouring features of the
// first operand, and one number of the second operand is the weight of all of them.
//
// A group of lanes reads one neighbour's row, 16 bytes a lane where the width allows it, so a warp reads several narrow
// rows at once. What each entry reads next is loaded while the rows of the entries before it are on their way.
#pragma once

#include "cuda/absmax.cuh"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"

constexpr int kBatch = 4;  // neighbours that a group of lanes reads at a time

enum WeightKind { kUnweighted = 0, kFloatWeight = 1, kInt8Weight = 2, kAnyWeight = 3 };  // the last: the launch says

// Features of a neighbour that one lane reads: kValues of them, as words of four int8, which have to be divided by
// 1 << kShift, or as floats. `Raw` is how they stand in memory.
struct Int8x16 {
    using Raw = uint4;
    static constexpr int kValues = 16, kShift = 0;
    __device__ static __forceinline__ int64_t row_bytes(int64_t width) { return width; }
    __device__ static __forceinline__ Raw nothing() { return make_uint4(0, 0, 0, 0); }
    __device__ static __forceinline__ void words(Raw raw, uint32_t (&word)[4]) {
        word[0] = raw.x, word[1] = raw.y, word[2] = raw.z, word[3] = raw.w;
    }
};

struct Int8x4 {
    using Raw = uint32_t;
    static constexpr int kValues = 4, kShift = 0;
    __device__ static __forceinline__ int64_t row_bytes(int64_t width) { return width; }
    __device__ static __forceinline__ Raw nothing() { return 0; }
    __device__ static __forceinline__ void words(Raw raw, uint32_t (&word)[1]) { word[0] = raw; }
};

// Each 4-bit value becomes the high half of a byte.
struct Int4x16 {
    using Raw = uint2;
    static constexpr int kValues = 16, kShift = 4;
    __device__ static __forceinline__ int64_t row_bytes(int64_t width) { return width / 2; }
    __device__ static __forceinline__ Raw nothing() { return make_uint2(0, 0); }
    __device__ static __forceinline__ void words(Raw raw, uint32_t (&word)[4]) {
        const uint32_t even[2] = {raw.x << 4 & 0xf0f0f0f0u, raw.y << 4 & 0xf0f0f0f0u};
        const uint32_t odd[2] = {raw.x & 0xf0f0f0f0u, raw.y & 0xf0f0f0f0u};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            word[2 * i] = __byte_perm(even[i], odd[i], 0x5140);
            word[2 * i + 1] = __byte_perm(even[i], odd[i], 0x7362);
        }
    }
};

struct Float32x4 {
    using Raw = float4;
    static constexpr int kValues = 4, kShift = 0;
    __device__ static __forceinline__ int64_t row_bytes(int64_t width) { return 4 * width; }
    __device__ static __forceinline__ Raw nothing() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
};

// Four int8 as floats: 2^23 + 128 + q has q's bits, shifted by 128, in the low byte.
__device__ __forceinline__ void to_floats(uint32_t word, float (&value)[4]) {
    const uint32_t shifted = word ^ 0x80808080u;
    value[0] = __fadd_rn(__uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7440)), -8388736.0f);
    value[1] = __fadd_rn(__uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7441)), -8388736.0f);
    value[2] = __fadd_rn(__uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7442)), -8388736.0f);
    value[3] = __fadd_rn(__uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7443)), -8388736.0f);
}

// How the values of one neighbour are added. A share has at most 131,072 entries, so int32 sums cannot overflow.
template <typename Load>
struct IntegerSum {
    using Sum = int;
    using Weight = int;
    static constexpr int kWords = Load::kValues / 4;

    __device__ static __forceinline__ Weight one() { return 1; }
    __device__ static __forceinline__ Weight weight(const void* w, uint64_t at, WeightKind) {
        return static_cast<const int8_t*>(w)[at];
    }

    // The bytes of four neighbours are transposed, then dp4a multiplies them with their four weights.
    __device__ static __forceinline__ void add(const typename Load::Raw (&raw)[4], const Weight (&weight)[4],
                                               Sum (&sum)[Load::kValues]) {
        const uint32_t pair[2] = {__byte_perm(weight[0], weight[1], 0x0040), __byte_perm(weight[2], weight[3], 0x0040)};
        const int weights = static_cast<int>(__byte_perm(pair[0], pair[1], 0x5410));
        uint32_t word[4][kWords];
#pragma unroll
        for (int j = 0; j < 4; ++j) Load::words(raw[j], word[j]);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const uint32_t low01 = __byte_perm(word[0][i], word[1][i], 0x5140);
            const uint32_t low23 = __byte_perm(word[2][i], word[3][i], 0x5140);
            const uint32_t high01 = __byte_perm(word[0][i], word[1][i], 0x7362);
            const uint32_t high23 = __byte_perm(word[2][i], word[3][i], 0x7362);
            const uint32_t of_feature[4] = {__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                                            __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632)};
#pragma unroll
            for (int k = 0; k < 4; ++k)
                sum[4 * i + k] = __dp4a(static_cast<int>(of_feature[k]), weights, sum[4 * i + k]);
        }
    }
    __device__ static __forceinline__ Sum whole(Sum sum) { return sum >> Load::kShift; }
};

template <typename Load>
struct FloatSum {
    using Sum = float;
    using Weight = float;

    __device__ static __forceinline__ Weight one() { return 1.0f; }
    __device__ static __forceinline__ Weight weight(const void* w, uint64_t at, WeightKind kind) {
        return kind == kFloatWeight ? static_cast<const float*>(w)[at]
                                    : static_cast<float>(static_cast<const int8_t*>(w)[at]);
    }

    __device__ static __forceinline__ void add(const typename Load::Raw (&raw)[4], const Weight (&weight)[4],
                                               Sum (&sum)[Load::kValues]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) add(raw[j], weight[j], sum);
    }
    __device__ static __forceinline__ Sum whole(Sum sum) { return sum * (1.0f / (1 << Load::kShift)); }

  private:
    __device__ static __forceinline__ void add(float4 raw, float weight, float (&sum)[4]) {
        sum[0] = __fmaf_rn(weight, raw.x, sum[0]);
        sum[1] = __fmaf_rn(weight, raw.y, sum[1]);
        sum[2] = __fmaf_rn(weight, raw.z, sum[2]);
        sum[3] = __fmaf_rn(weight, raw.w, sum[3]);
    }
    template <typename Raw, int V>
    __device__ static __forceinline__ void add(Raw raw, float weight, float (&sum)[V]) {
        uint32_t word[V / 4];
        Load::words(raw, word);
#pragma unroll
        for (int i = 0; i < V / 4; ++i) {
            float value[4];
            to_floats(word[i], value);
#pragma unroll
            for (int k = 0; k < 4; ++k) sum[4 * i + k] = __fmaf_rn(weight, value[k], sum[4 * i + k]);
        }
    }
};

// What becomes of a sum: multiplied by the product of the scales, as the CPU does it, and rounded to the dtype of the
// output. Where there are factors, row v is then multiplied with factors[v], or divided by it, and rounded again.
struct Output {
    void* out;
    int64_t dtype;
    const float* factors;
    int64_t divide;
    float scale;
    uint32_t seen = 0;

    __device__ __forceinline__ Output(void* out, int64_t dtype, const float* factors, int64_t divide,
                                      const float* x_scale, const float* w_scale)
        : out(out),
          dtype(dtype),
          factors(factors),
          divide(divide),
          scale(__fmul_rn(x_scale ? *x_scale : 1.0f, w_scale ? *w_scale : 1.0f)) {}

    __device__ __forceinline__ float factor(int row) const { return factors ? factors[row] : 1.0f; }

    __device__ __forceinline__ float value(float sum, float factor) {
        float y = rounded(dtype, __fmul_rn(sum, scale));
        if (factors) y = rounded(dtype, divide ? y / factor : __fmul_rn(y, factor));
        seen = larger(seen, magnitude(y));
        return y;
    }

    __device__ __forceinline__ void put(int64_t at, float value) const {
        if (dtype == Dtype::kFloat32) {
            static_cast<float*>(out)[at] = value;
        } else if (dtype == Dtype::kBfloat16) {
            static_cast<bfloat16*>(out)[at] = from_float<bfloat16>(value);
        } else {
            static_cast<float16*>(out)[at] = from_float<float16>(value);
        }
    }
};

__device__ __forceinline__ float4 four(const float* value) {
    return make_float4(value[0], value[1], value[2], value[3]);
}
__device__ __forceinline__ int4 four(const int* value) {
    return make_int4(value[0], value[1], value[2], value[3]);
}

// The first `count` values, a power of two; `to` is aligned to as many bytes, 16 at most.
template <typename T, int V>
__device__ __forceinline__ void put_values(T* to, const T (&value)[V], int count) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        if (i + 4 <= count) global_store(to + i, four(value + i));
    }
    if (count < 4) to[0] = value[0];
    if (count == 2) to[1] = value[1];
}

// Likewise, to halves.
template <typename T, int V>
__device__ __forceinline__ void put_halves(T* to, const float (&value)[V], int count) {
    if constexpr (V >= kEight) {
#pragma unroll
        for (int i = 0; i < V; i += kEight) {
            const float* const v = value + i;
            if (i + kEight <= count) {
                global_store(to + i, make_uint4(pair_from_floats<T>(v[0], v[1]), pair_from_floats<T>(v[2], v[3]),
                                                pair_from_floats<T>(v[4], v[5]), pair_from_floats<T>(v[6], v[7])));
            }
        }
    }
    if (count == 4) {
        global_store(to, make_uint2(pair_from_floats<T>(value[0], value[1]), pair_from_floats<T>(value[2], value[3])));
    }
    if (count == 2) global_store(to, pair_from_floats<T>(value[0], value[1]));
    if (count == 1) to[0] = from_float<T>(value[0]);
}

// An entry's row of the first operand, and where its weight stands, if it has one.
struct Neighbours {
    const void* rows;
    const void* w_rows;
    int is_int64, entries;
};

template <typename Load, typename Add, WeightKind kKind>
class NeighbourSum {
    using Raw = typename Load::Raw;
    using Weight = typename Add::Weight;
    static constexpr int V = Load::kValues;

  public:
    using Sum = typename Add::Sum;

    // first_chunk: of the lane's group, in runs of V features; the lane has none where it is not below end_chunk.
    __device__ __forceinline__ NeighbourSum(const Neighbours& neighbours, const void* x, const void* w, int w_kind,
                                            int64_t w_width, int64_t run_length, const int64_t* w_offsets,
                                            int64_t width, int lanes, int first_chunk, int end_chunk, Sum* pieces,
                                            const Output& output)
        : output(output),
          neighbours_(neighbours),
          w_(w),
          w_kind_(kKind == kAnyWeight ? static_cast<WeightKind>(w_kind) : kKind),
          lanes_(lanes),
          groups_(kWarp / lanes),
          group_(lane_id() / lanes),
          count_(max(V * lanes / kWarp, 1)),
          width_(static_cast<int>(width)),
          x_bytes_(static_cast<uint32_t>(Load::row_bytes(width))),
          w_width_(static_cast<uint32_t>(w_width)),
          pieces_(pieces) {
        const int chunk = first_chunk + lane_id() % lanes;
        reads_ = chunk < end_chunk;
        writes_ = reads_ && holds_sums_first<V>(lanes);
        feature_ = chunk * V;
        x_ = static_cast<const char*>(x) + Load::row_bytes(feature_);
        w_at_ = w_kind_ && w_offsets && reads_ ? static_cast<uint32_t>(w_offsets[feature_ / run_length]) : 0;
    }

    __device__ __forceinline__ void look_ahead(int first) {
        const int entry = first + group_ * kBatch;
        indices_from(neighbours_.rows, entry, neighbours_.entries, neighbours_.is_int64, row_);
        if (w_kind_) indices_from(neighbours_.w_rows, entry, neighbours_.entries, neighbours_.is_int64, w_row_);
    }

    __device__ __forceinline__ void add(int, int first, int last) {
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] = 0;
        while (first < last) {
            Raw raw[kBatch];
            Weight weight[kBatch];
            const int mine = reads_ ? last - first - group_ * kBatch : 0;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const bool here = j < mine;
                raw[j] = here ? global_load<Raw>(x_ + static_cast<uint64_t>(row_[j]) * x_bytes_) : Load::nothing();
                weight[j] = Add::one();
                if (w_kind_) {
                    const uint64_t at = static_cast<uint64_t>(w_row_[j]) * w_width_ + w_at_;
                    weight[j] = here ? Add::weight(w_, at, w_kind_) : 0;
                }
            }
            first = min(first + kBatch * groups_, last);
            look_ahead(first);
            Add::add(raw, weight, sum_);
        }
        added_ = sum_over_groups(sum_, lanes_);
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] = Add::whole(sum_[i]);
    }

    __device__ __forceinline__ void finish(int row) {
        if (!writes_) return;
        const float factor = output.factor(row);
        float value[V];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i < count_) value[i] = output.value(static_cast<float>(sum_[i]), factor);
        }
        const int64_t at = static_cast<int64_t>(row) * width_ + feature_ + added_;
        if (output.dtype == Dtype::kFloat32) {
            put_values(static_cast<float*>(output.out) + at, value, count_);
        } else if (output.dtype == Dtype::kBfloat16) {
            put_halves(static_cast<bfloat16*>(output.out) + at, value, count_);
        } else {
            put_halves(static_cast<float16*>(output.out) + at, value, count_);
        }
    }

    __device__ __forceinline__ void keep(int slot) const {
        if (writes_) put_values(pieces_ + static_cast<int64_t>(slot) * width_ + feature_ + added_, sum_, count_);
    }

    Output output;

  private:
    const Neighbours neighbours_;
    const char* x_;
    const void* const w_;
    const WeightKind w_kind_;
    const int lanes_, groups_, group_, count_;  // count_: sums that are left to a lane at a row's end
    const int width_;
    const uint32_t x_bytes_, w_width_;
    Sum* const pieces_;
    bool reads_, writes_;
    int feature_;
    uint32_t w_at_;
    uint32_t row_[kBatch], w_row_[kBatch];
    Sum sum_[V];
    int added_;  // sum_[0] is of the lane's feature added_
};
