// Rows in few bits between their least and their largest element (TinyKG, RecSys'22, equations 3 and 4; EXACT,
// ICLR'22), rounded stochastically. docs/architecture.md fixes every bit of the result.

#include <cstring>
#include <type_traits>

#include "common/bits.h"
#include "common/kernel.h"
#include "common/philox.h"
#include "common/scalar.h"
#include "cpu/row_compression/ends.h"
#include "cpu/row_compression/runs.h"
#include "cpu/row_compression/values.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kPieceRandom = kPiece + kPieceRuns + (kWords + 1) * kBlockBytes + kRandomSpare;
constexpr int64_t kSpare = 2 * kWide;
// Values of a piece: each row ends at a byte.
constexpr int64_t kPieceValues = kPiece + kPieceRuns * 7 + kSpare;

// streamed: past the caches, which pays for whole bytes.
void pack(const uint8_t* values, int64_t count, int64_t bits, bool streamed, uint8_t* packed) {
    if (bits == 1) pack_bits<1>(values, count, packed);
    if (bits == 2) pack_bits<2>(values, count, packed);
    if (bits == 4) pack_bits<4>(values, count, packed);
    if (bits == 8 && streamed) stream(values, count, packed);
    if (bits == 8 && !streamed) std::memcpy(packed, values, static_cast<size_t>(count));
}

const uint8_t* unpack(const uint8_t* packed, int64_t bytes, int64_t bits, uint8_t* values) {
    if (bits == 1) unpack_bits<1>(packed, bytes * 8, values);
    if (bits == 2) unpack_bits<2>(packed, bytes * 4, values);
    if (bits == 4) unpack_bits<4>(packed, bytes * 2, values);
    if (bits == 8) std::memcpy(values, packed, static_cast<size_t>(bytes));
    return values;
}

template <typename T>
struct Compressor {
    const T* x;
    int64_t elements;
    Runs runs;
    const Philox* stream;  // null to round to nearest
    bool in_bfloat16, streamed;
    uint8_t* packed;
    void *zeros, *ranges;

    // Runs r0 .. r1, which have at most kPiece elements together, or one run.
    void operator()(int64_t r0, int64_t r1) const {
        const Run first(runs, r0), last(runs, r1 - 1);
        PieceStats stats;
        stats.find(x, elements, first, r1 - r0, static_cast<float>(((1 << runs.bits) - 1) << kFractionBits),
                   in_bfloat16);
        stats.keep(r0, r1 - r0, in_bfloat16, zeros, ranges);
        if (last.first() + last.count() - first.first() <= kPiece)
            write(first, last, r1 - r0, stats);
        else
            write_parts(first, stats);
    }

  private:
    // The values of a piece, the last run of which ends at an element and a byte.
    void write(Run run, const Run& last, int64_t count, const PieceStats& stats) const {
        alignas(64) uint8_t random[kPieceRandom], values[kPieceValues];
        const int64_t byte = run.byte(), end = last.byte() + packed_bytes(last.count(), runs.bits);
        const uint8_t* const drawn = draw(run.random(), last.random() + last.count(), random) - run.random();
        for (int64_t i = 0; i < count; ++i, run.next())
            round(run.first(), run.count(), stats.least[i], stats.factor[i], drawn + run.random(),
                  values + (run.byte() - byte) * of_byte(runs.bits));
        pack(values, (end - byte) * of_byte(runs.bits), runs.bits, streamed, packed + byte);
    }

    // The values of a run that is longer than a piece.
    void write_parts(const Run& run, const PieceStats& stats) const {
        alignas(64) uint8_t random[kPieceRandom], values[kPieceValues];
        for (int64_t at = 0; at < run.count(); at += kPiece) {
            const int64_t count = run.count() - at < kPiece ? run.count() - at : kPiece, first = run.random() + at;
            const uint8_t* const drawn = draw(first, first + count, random);
            round(run.first() + at, count, stats.least[0], stats.factor[0], drawn, values);
            pack(values, packed_bytes(count, runs.bits) * of_byte(runs.bits), runs.bits, streamed,
                 packed + run.byte() + at * runs.bits / 8);
        }
    }

    void round(int64_t first, int64_t count, float least, float factor, const uint8_t* drawn, uint8_t* values) const {
        prefetch(x + first + kPiece, count * static_cast<int64_t>(sizeof(T)));
        if (factor == 0)
            std::memset(values, 0, static_cast<size_t>(count + kRowSpare));
        else if (stream)
            round_run<true>(x + first, count, elements - first, least, factor, drawn, values);
        else
            round_run<false>(x + first, count, elements - first, least, factor, drawn, values);
    }

    // The random bytes `first` .. `last` of the tensor.
    const uint8_t* draw(int64_t first, int64_t last, uint8_t* random) const {
        if (!stream) return random;
        const int64_t block = first / kBlockBytes, end = (last + kBlockBytes - 1) / kBlockBytes;
        random_bytes(*stream, static_cast<uint64_t>(block), random, end - block);
        return random + first % kBlockBytes;
    }
};

template <typename T>
void compress(int64_t threads, int64_t rows, const Compressor<T>& compressor) {
    const int64_t runs = rows * compressor.runs.of_row(), step = compressor.runs.of_piece();
#pragma omp parallel num_threads(team(threads, compressor.elements))
    {
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < runs; r0 += step) compressor(r0, r0 + step < runs ? r0 + step : runs);
        end_stream();
    }
}

template <typename S, typename T>
struct Decompressor {
    const uint8_t* packed;
    const S *zeros, *ranges;
    Runs runs;
    bool streamed;
    T* out;

    // As Compressor.
    void operator()(int64_t r0, int64_t r1) const {
        alignas(64) float elements[kPiece + kSpare];
        alignas(64) uint8_t values[kPieceValues];
        alignas(64) float zero[kPieceRuns], step[kPieceRuns];
        const float bins = static_cast<float>((1 << runs.bits) - 1);
        const int64_t count = r1 - r0;
        load_all(zeros + r0, count, zero);
        load_all(ranges + r0, count, step);
        for (int64_t i = 0; i < count; ++i) step[i] /= bins;
        const Run first(runs, r0), last(runs, r1 - 1);
        const int64_t end = last.first() + last.count();
        if (end - first.first() <= kPiece) {
            const int64_t bytes = last.byte() + packed_bytes(last.count(), runs.bits) - first.byte();
            unpack(packed + first.byte(), bytes, runs.bits, values);
            Run run = first;
            for (int64_t i = 0; i < count; ++i, run.next())
                spread_run(values + (run.byte() - first.byte()) * of_byte(runs.bits), run.count(), step[i], zero[i],
                           elements + (run.first() - first.first()));
            write(elements, end - first.first(), out + first.first());
        } else {
            for (int64_t at = 0; at < last.count(); at += kPiece) {
                const int64_t part = last.count() - at < kPiece ? last.count() - at : kPiece;
                unpack(packed + last.byte() + at * runs.bits / 8, packed_bytes(part, runs.bits), runs.bits, values);
                spread_run(values, part, step[0], zero[0], elements);
                write(elements, part, out + last.first() + at);
            }
        }
    }

  private:
    void write(float* elements, int64_t count, T* to) const {
        alignas(64) T converted[std::is_same_v<T, float> ? 1 : kPiece];
        const void* from = elements;
        if constexpr (!std::is_same_v<T, float>) {
            for (int64_t i = 0; i < count; ++i) elements[i] = within(to, elements[i]);
            store_all(elements, count, converted);
            from = converted;
        }
        const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
        if (streamed)
            stream(from, bytes, to);
        else
            std::memcpy(to, from, static_cast<size_t>(bytes));
    }
};

template <typename S, typename T>
void decompress(int64_t threads, int64_t rows, const Decompressor<S, T>& decompressor) {
    const int64_t runs = rows * decompressor.runs.of_row(), step = decompressor.runs.of_piece();
#pragma omp parallel num_threads(team(threads, rows* decompressor.runs.width))
    {
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < runs; r0 += step) decompressor(r0, r0 + step < runs ? r0 + step : runs);
        end_stream();
    }
}

}  // namespace

// x: [rows, width], width > 0; group: elements of a row that share zero and range, a multiple of 8 or at least the
// width; bits: 1, 2, 4 or 8; seed: two int64, or null to round to nearest; stats: dtype of zero and range, float32 or
// bfloat16; packed: [rows, packed_bytes(width, bits)] bytes; zeros, ranges: [rows, groups of a row].
GQC_KERNEL(compress_rows)(int64_t threads, const void* x, int64_t dtype, int64_t rows, int64_t width, int64_t group,
                          int64_t bits, const int64_t* seed, int64_t node, int64_t stats, uint8_t* packed, void* zeros,
                          void* ranges) {
    static const int64_t unused[2] = {};
    const Philox stream(seed ? seed : unused, node);
    const bool streamed = is_streamed(rows * packed_bytes(width, bits));
    typed(x, dtype, [&](auto* elements) {
        const Compressor<std::remove_const_t<std::remove_pointer_t<decltype(elements)>>> compressor{
            elements,
            rows * width,
            {width, group, bits},
            seed ? &stream : nullptr,
            stats == kBfloat16,
            streamed,
            packed,
            zeros,
            ranges};
        compress(threads, rows, compressor);
    });
    return nullptr;
}

// As above; out: [rows, width].
GQC_KERNEL(decompress_rows)(int64_t threads, const uint8_t* packed, const void* zeros, const void* ranges,
                            int64_t stats, int64_t rows, int64_t width, int64_t group, int64_t bits, int64_t dtype,
                            void* out) {
    typed(out, dtype, [&](auto* elements) {
        using T = std::remove_pointer_t<decltype(elements)>;
        const bool streamed = is_streamed(rows * width * static_cast<int64_t>(sizeof(T)));
        const auto decompress_with = [&](auto* zero, auto* range) {
            using S = std::remove_const_t<std::remove_pointer_t<decltype(zero)>>;
            decompress(threads, rows,
                       Decompressor<S, T>{packed, zero, range, {width, group, bits}, streamed, elements});
        };
        if (stats == kBfloat16)
            decompress_with(static_cast<const bfloat16*>(zeros), static_cast<const bfloat16*>(ranges));
        else
            decompress_with(static_cast<const float*>(zeros), static_cast<const float*>(ranges));
    });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
