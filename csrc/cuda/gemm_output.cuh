// What becomes of a warp's sums: rows of floats, or of int8 values.
#pragma once

#include "cuda/gemm_epilogue.cuh"
#include "cuda/gemm_tile.cuh"
#include "cuda/rounding.cuh"

// Where values of a relu are not 0: a bit each, a row in (n + 7) / 8 bytes. count: how many of y there are; zero: see
// largest_zero.
__device__ __forceinline__ void store_positive(uint8_t* positive, int64_t row, int column, int64_t n,
                                               const float (&y)[kEight], int count, float zero) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kEight; ++i) bits |= i < count && !(y[i] <= zero) ? 1u << i : 0u;
    positive[row * ((n + kEight - 1) / kEight) + column / kEight] = static_cast<uint8_t>(bits);
}

// Calls use(e, row, y) with a lane's 8 neighbours y of each of its rows, of rows beyond the matrix and columns beyond
// it too. row, column: of the warp's first sum. kUnrolled: in a loop that is not, sums move on, which costs a quarter
// more and takes a quarter of the code.
template <bool kUnrolled, typename Sums, typename Use>
__device__ __forceinline__ void for_each_eight(Sums& sums, const Epilogue& epilogue, int64_t row, int column, int64_t m,
                                               int64_t n, const Use& use) {
    const int first = column + sums.column_of_lane(), count = count_of_eight(first, n);
    const auto bias_of = [&](int c) { return c < count ? epilogue.bias_of(first + c) : -0.0f; };
    float bias[kEight];
#pragma unroll
    for (int c = 0; c < kEight; ++c) bias[c] = kUnrolled ? bias_of(c) : 0.0f;
#pragma unroll(kUnrolled ? Sums::kFragments : 1)
    for (int i = 0; i < Sums::kFragments; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int64_t of_lane = row + 8 * i + sums.row_of_lane(e);
            const float factor = of_lane < m ? epilogue.factor_of(of_lane) : 1.0f;
            float y[kEight];
#pragma unroll
            for (int c = 0; c < kEight; ++c)
                y[c] = epilogue.value(sums.at(kUnrolled ? i : 0, e, c), kUnrolled ? bias[c] : bias_of(c), factor);
            use(e, of_lane, y);
        }
        if (!kUnrolled) sums.next_fragment();
    }
}

struct FloatOutput {
    Extras extras;
    int64_t dtype;
    void* out;          // null: absmax alone is wanted
    uint8_t* positive;  // or null

    template <typename Sums>
    __device__ __forceinline__ void write(Sums& sums, float a_scale, int64_t row, int column, int64_t m, int64_t n,
                                          uint32_t& seen) const {
        if (n % kEight == 0 && is_aligned(out, 16))
            write<true>(sums, a_scale, row, column, m, n, seen);
        else
            write<false>(sums, a_scale, row, column, m, n, seen);
    }

    // absmax for an output of which the block has seen magnitudes before rounding, which is monotone.
    template <typename Scratch>
    __device__ __forceinline__ void raise(float* absmax, uint32_t seen, Scratch& scratch) const {
        raise_absmax(absmax, magnitude(rounded(dtype, __uint_as_float(seen))), scratch);
    }

  private:
    // kVectors: every eight is whole and aligned.
    template <bool kVectors, typename Sums>
    __device__ __forceinline__ void write(Sums& sums, float a_scale, int64_t row, int column, int64_t m, int64_t n,
                                          uint32_t& seen) const {
        const Epilogue epilogue(a_scale, extras);
        const int first = column + sums.column_of_lane(), left = count_of_eight(first, n);
        const auto use = [&](int, int64_t of_lane, const float (&y)[kEight]) {
            if (of_lane >= m || left <= 0) return;
            const int count = kVectors ? kEight : left;
#pragma unroll
            for (int c = 0; c < kEight; ++c)
                if (c < count) seen = larger(seen, magnitude(y[c]));
            if (out != nullptr) store<kVectors>(of_lane * n + first, y, count);
            if (positive != nullptr) store_positive(positive, of_lane, first, n, y, count, largest_zero(dtype));
        };
        for_each_eight<kVectors>(sums, epilogue, row, column, m, n, use);
    }

    template <bool kVectors>
    __device__ __forceinline__ void store(int64_t at, const float (&y)[kEight], int count) const {
        if (dtype == Dtype::kFloat32) {
            float* to = static_cast<float*>(out) + at;
            if constexpr (kVectors) {
                store_vectors(to, y);
            } else {
#pragma unroll
                for (int c = 0; c < kEight; ++c)
                    if (c < count) to[c] = y[c];
            }
            return;
        }
        uint32_t pairs[kEight / 2];
#pragma unroll
        for (int i = 0; i < kEight / 2; ++i)
            pairs[i] = dtype == Dtype::kBfloat16 ? pair_from_floats<bfloat16>(y[2 * i], y[2 * i + 1])
                                                 : pair_from_floats<float16>(y[2 * i], y[2 * i + 1]);
        uint16_t* to = static_cast<uint16_t*>(out) + at;
        if constexpr (kVectors) {
            global_store<uint4>(to, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        } else {
#pragma unroll
            for (int c = 0; c < kEight; ++c)
                if (c < count) to[c] = static_cast<uint16_t>(pairs[c / 2] >> c % 2 * 16);
        }
    }
};

// The values rounded to dtype and then to int8, as quantize would round them.
struct Int8Output {
    Extras extras;
    int64_t dtype;
    const float* absmax;
    float limit;
    const int64_t* seed;
    int64_t node;
    int8_t* q;
    uint8_t* positive;  // or null

    template <typename Sums>
    __device__ __forceinline__ void write(Sums& sums, float a_scale, int64_t row, int column, int64_t m, int64_t n,
                                          uint32_t&) const {
        const Epilogue epilogue(a_scale, extras);
        const Rounding round(*absmax, limit);
        const int first = column + sums.column_of_lane(), count = count_of_eight(first, n);
        const bool vectors = n % kEight == 0 && is_aligned(q, kEight), pairs = n % kPiece == 0 && is_aligned(q, kPiece);
        uint2 even_row = make_uint2(0, 0);
        const auto use = [&](int e, int64_t of_lane, float (&y)[kEight]) {
            const bool inside = of_lane < m && count > 0;
            if (positive != nullptr && inside)
                store_positive(positive, of_lane, first, n, y, count, largest_zero(dtype));
#pragma unroll
            for (int c = 0; c < kEight; ++c) y[c] = rounded(dtype, y[c]);
            const int64_t at = of_lane * n + first;
            const RoundingBits random(seed, node);
            const uint2 values = rounded_eight(round, y, random, random.eight_from(at));
            if (!pairs) {
                if (inside) store_values(q, at, values, count, vectors);
            } else if (e == 0) {
                even_row = values;
            } else {
                store_sixteen(even_row, values, of_lane - 1, first, m, n);
            }
        };
        for_each_eight<false>(sums, epilogue, row, column, m, n, use);
    }

    template <typename Scratch>
    __device__ __forceinline__ void raise(float* scale, uint32_t, Scratch&) const {
        if (grid_thread() == 0) *scale = Rounding(*absmax, limit).scale;
    }

  private:
    // Lanes that hold 8 neighbours each of the same 2 rows exchange them, so that each has 16 of one row.
    __device__ __forceinline__ void store_sixteen(uint2 even_row, uint2 odd_row, int64_t row, int first, int64_t m,
                                                  int64_t n) const {
        const int is_right = lane_id() / 4 % 2;
        const uint2 kept = is_right ? odd_row : even_row, given = is_right ? even_row : odd_row;
        const uint2 got = make_uint2(__shfl_xor_sync(kAllLanes, given.x, 4), __shfl_xor_sync(kAllLanes, given.y, 4));
        if (row + is_right >= m || first >= n) return;
        const uint4 piece =
            is_right ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y);
        global_store<uint4>(q + ((row + is_right) * n + first - is_right * kEight), piece);
    }
};
