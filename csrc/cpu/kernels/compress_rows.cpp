// Rows in few bits between their least and their largest element (TinyKG, RecSys'22, equations 3 and 4; EXACT,
// ICLR'22), rounded stochastically. docs/architecture.md fixes every bit of the result.

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/bits.h"
#include "common/kernel.h"
#include "common/philox.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kChunk = kBlocks * kBlockElements;
constexpr int64_t kPiece = 4096;  // elements at a time: what lies between memory and the packed bytes stays in L1

// Elements order as these integers do, and a NaN stands beyond Inf or -Inf. The map is its own inverse.
inline int32_t ordered(int32_t bits) {
    return bits ^ ((bits >> 31) & 0x7fffffff);
}
inline int16_t ordered(int16_t bits) {
    return static_cast<int16_t>(bits ^ ((bits >> 15) & 0x7fff));
}
inline int32_t signed_bits(float x) {
    return static_cast<int32_t>(bits_of(x));
}
template <typename T>
inline int16_t signed_bits(T x) {
    return static_cast<int16_t>(x.bits);
}

// What a row keeps: its least element and the distance to the largest. Both are NaN where an element is not finite or
// the distance overflows, so that all that is computed from them is.
struct Stats {
    float zero, range;
};

// To the next bfloat16 below, and above; Inf stays.
inline float bfloat16_below(float x) {
    const uint32_t bits = bits_of(x), up = bits >> 31 ? 0xffffu : 0u;
    return float_of((bits + up) & 0xffff0000u);
}
inline float bfloat16_above(float x) {
    return -bfloat16_below(-x);
}

template <typename T>
Stats stats_of(const T* x, int64_t width, bool is_bfloat16) {
    using Key = decltype(signed_bits(*x));
    if (width == 0) return {0, 0};
    Key least = std::numeric_limits<Key>::max(), most = std::numeric_limits<Key>::min();
#pragma omp simd reduction(min : least) reduction(max : most)
    for (int64_t i = 0; i < width; ++i) {
        const Key key = ordered(signed_bits(x[i]));
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    T ends[2];
    least = ordered(least);
    most = ordered(most);
    std::memcpy(&ends[0], &least, sizeof least);
    std::memcpy(&ends[1], &most, sizeof most);
    const float largest = load(ends[1]);
    Stats stats{load(ends[0]), 0};
    if (is_finite(stats.zero) && is_bfloat16) stats.zero = bfloat16_below(stats.zero);
    stats.range = largest - stats.zero;
    if (is_finite(stats.range) && is_bfloat16) stats.range = bfloat16_above(stats.range);
    return is_finite(stats.zero) && is_finite(stats.range) ? stats : Stats{NAN, NAN};
}

// The factor that makes bins of a range; 0 where the range is none, so small that it has no factor, or NaN.
inline float bins_per_unit(float range, float bins) {
    const float factor = bins / range;
    return is_finite(factor) ? factor : 0;
}

template <typename S>
void keep(const Stats& stats, int64_t row, void* zero, void* range) {
    store(static_cast<S*>(zero) + row, stats.zero);
    store(static_cast<S*>(range) + row, stats.range);
}

// values[i] = floor((x[i] - zero) * factor + r), at most `bins`; 0 for a NaN.
inline void round_values(const float* __restrict x, int64_t count, float zero, float factor, float bins,
                         const uint16_t* __restrict random, uint8_t* __restrict values) {
    for (int64_t i = 0; i < count; ++i) {
        float y = (x[i] - zero) * factor + static_cast<float>(random[i]) * (1.0f / 65536.0f);
        y = y > 0 ? y : 0;
        y = y < bins ? y : bins;
        values[i] = static_cast<uint8_t>(static_cast<int32_t>(y));
    }
}

// A row's elements in groups of `group`, the last one as long as what is left. A run is a group of a row.
struct Runs {
    int64_t width, group, bits;

    int64_t of_row() const { return (width + group - 1) / group; }
    int64_t column(int64_t run) const { return run % of_row() * group; }
    int64_t first(int64_t run) const { return run / of_row() * width + column(run); }
    int64_t count(int64_t run) const { return width - column(run) < group ? width - column(run) : group; }
    int64_t byte(int64_t run) const { return run / of_row() * packed_bytes(width, bits) + column(run) * bits / 8; }
    // Runs that have at most kPiece elements together, or one.
    int64_t of_piece() const { return group < kPiece ? kPiece / group : 1; }
};

template <typename T>
struct Compressor {
    const T* x;
    Runs runs;
    const Philox* stream;  // null to round to nearest
    bool is_bfloat16;
    uint8_t* packed;
    void *zero, *range;

    // Runs r0 .. r1, which have at most kPiece elements together, or one run.
    void operator()(int64_t r0, int64_t r1) const {
        const int64_t bits = runs.bits, step = runs.group < kPiece ? runs.group : kPiece;
        const float bins = static_cast<float>((1 << bits) - 1);
        alignas(64) uint16_t random[kPiece + kChunk];
        alignas(64) float scratch[kPiece];
        alignas(64) uint8_t values[kPiece];
        if (!stream) {
            for (uint16_t& half : random) half = 32768;
        } else if (runs.group <= kPiece) {
            draw(runs.first(r0), runs.first(r1 - 1) + runs.count(r1 - 1), random);
        }
        for (int64_t r = r0; r < r1; ++r) {
            const int64_t of_run = runs.first(r), length = runs.count(r);
            const Stats stats = stats_of(x + of_run, length, is_bfloat16);
            is_bfloat16 ? keep<bfloat16>(stats, r, zero, range) : keep<float>(stats, r, zero, range);
            const float factor = bins_per_unit(stats.range, bins);
            const float least = is_finite(stats.zero) ? stats.zero : 0;
            for (int64_t at = 0; at < length; at += step) {
                const int64_t first = of_run + at, count = length - at < step ? length - at : step;
                if (stream && runs.group > kPiece) draw(first, first + count, random);
                const int64_t drawn = (runs.group > kPiece ? first : runs.first(r0)) / kBlockElements * kBlockElements;
                const uint16_t* of_part = stream ? random + (first - drawn) : random;
                const float* elements = floats(x + first, count, scratch);
                uint8_t* out = packed + runs.byte(r) + at * bits / 8;
                round_values(elements, count, least, factor, bins, of_part, bits == 8 ? out : values);
                if (bits == 1) pack_bits<1>(values, count, out);
                if (bits == 2) pack_bits<2>(values, count, out);
                if (bits == 4) pack_bits<4>(values, count, out);
            }
        }
    }

  private:
    // Random bits of elements first .. last, and of those before in the block of `first`.
    void draw(int64_t first, int64_t last, uint16_t* random) const {
        for (int64_t block = first / kBlockElements; block * kBlockElements < last; block += kBlocks) {
            random_bits(*stream, static_cast<uint64_t>(block), random);
            random += kChunk;
        }
    }
};

template <typename T>
void compress(int64_t threads, int64_t rows, const Compressor<T>& compressor) {
    const int64_t runs = rows * compressor.runs.of_row(), step = compressor.runs.of_piece();
#pragma omp parallel for num_threads(team(threads, rows* compressor.runs.width)) schedule(static)
    for (int64_t r0 = 0; r0 < runs; r0 += step) compressor(r0, r0 + step < runs ? r0 + step : runs);
}

// Statistics in bfloat16 may lie beyond the largest float16.
inline float within(const float16*, float y) {
    y = y > 65504.0f ? 65504.0f : y;
    return y < -65504.0f ? -65504.0f : y;
}
template <typename T>
inline float within(const T*, float y) {
    return y;
}

// out = values * step + zero
template <typename T>
void spread(const uint8_t* __restrict values, int64_t count, float step, float zero, float* __restrict scratch,
            T* __restrict out) {
    float* results = floats_for(out, scratch);
    for (int64_t i = 0; i < count; ++i) results[i] = within(out, static_cast<float>(values[i]) * step + zero);
    store_all(results, count, out);
}

template <typename S, typename T>
void decompress(int64_t threads, const uint8_t* packed, const S* zero, const S* range, int64_t rows, const Runs& runs,
                T* out) {
    const int64_t bits = runs.bits, all = rows * runs.of_row(), step = runs.of_piece();
    const float bins = static_cast<float>((1 << bits) - 1);
#pragma omp parallel for num_threads(team(threads, rows* runs.width)) schedule(static)
    for (int64_t r0 = 0; r0 < all; r0 += step) {
        alignas(64) float scratch[kPiece];
        alignas(64) uint8_t unpacked[kPiece];
        for (int64_t r = r0; r < (r0 + step < all ? r0 + step : all); ++r)
            for (int64_t at = 0; at < runs.count(r); at += kPiece) {
                const int64_t count = runs.count(r) - at < kPiece ? runs.count(r) - at : kPiece;
                const uint8_t* from = packed + runs.byte(r) + at * bits / 8;
                if (bits == 1) unpack_bits<1>(from, count, unpacked);
                if (bits == 2) unpack_bits<2>(from, count, unpacked);
                if (bits == 4) unpack_bits<4>(from, count, unpacked);
                spread(bits == 8 ? from : unpacked, count, load(range[r]) / bins, load(zero[r]), scratch,
                       out + runs.first(r) + at);
            }
    }
}

}  // namespace

// x: [rows, width], width > 0; group: elements of a row that share zero and range, a multiple of 8 or at least the
// width; bits: 1, 2, 4 or 8; seed: two int64, or null to round to nearest; stats: dtype of zero and range, float32 or
// bfloat16; packed: [rows, packed_bytes(width, bits)] bytes; zero, range: [rows, groups of a row].
GQC_KERNEL(compress_rows)(int64_t threads, const void* x, int64_t dtype, int64_t rows, int64_t width, int64_t group,
                          int64_t bits, const int64_t* seed, int64_t node, int64_t stats, uint8_t* packed, void* zero,
                          void* range) {
    static const int64_t unused[2] = {};
    const Philox stream(seed ? seed : unused, node);
    typed(x, dtype, [&](auto* elements) {
        const Compressor<std::remove_const_t<std::remove_pointer_t<decltype(elements)>>> compressor{
            elements, {width, group, bits}, seed ? &stream : nullptr, stats == kBfloat16, packed, zero, range};
        compress(threads, rows, compressor);
    });
    return nullptr;
}

// As above; out: [rows, width].
GQC_KERNEL(decompress_rows)(int64_t threads, const uint8_t* packed, const void* zero, const void* range, int64_t stats,
                            int64_t rows, int64_t width, int64_t group, int64_t bits, int64_t dtype, void* out) {
    const Runs runs{width, group, bits};
    typed(out, dtype, [&](auto* values) {
        if (stats == kBfloat16)
            decompress(threads, packed, static_cast<const bfloat16*>(zero), static_cast<const bfloat16*>(range), rows,
                       runs, values);
        else
            decompress(threads, packed, static_cast<const float*>(zero), static_cast<const float*>(range), rows, runs,
                       values);
    });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
