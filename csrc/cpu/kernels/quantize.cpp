// Symmetric quantization of a tensor to at most 8 bits with one scale (Tango, SC'23, section 3.1).

#include "common/buffer.h"
#include "common/int4.h"
#include "common/kernel.h"
#include "common/scalar.h"
#include "cpu/rounding.h"

namespace gqc::GQC_ISA {
namespace {

// Elements at a time, so that what lies between rounding and packing stays in L1.
constexpr int64_t kPiece = 4096;
static_assert(kPiece % kRoundedChunk == 0);
constexpr int64_t kAhead = 4 * kRoundedChunk;  // how far before its use an element is asked for

// Gives the largest magnitude where it looks for it, else 0.
template <bool looks, typename T>
float quantize(int64_t threads, const T* x, int64_t n, const Rounding& rounding, int8_t* q) {
    decltype(magnitude_bits(*x)) largest = 0;
#pragma omp parallel num_threads(team(threads, n)) reduction(max : largest)
    {
#pragma omp for schedule(static) nowait
        for (int64_t piece = 0; piece < n; piece += kPiece) {
            const int64_t end = n - piece < kPiece ? n : piece + kPiece;
            for (int64_t at = piece; at < end; at += kRoundedChunk) {
                const int64_t count = end - at < kRoundedChunk ? end - at : kRoundedChunk;
                prefetch(x + at + kAhead, kRoundedChunk * static_cast<int64_t>(sizeof(T)));
                rounding.apply(x + at, at, count, q + at, is_streamed(n));
                decltype(magnitude_bits(*x)) seen = 0;
                for (int64_t i = at; looks && i < at + count; ++i) {
                    const auto m = magnitude_bits(x[i]);
                    seen = m > seen ? m : seen;
                }
                largest = seen > largest ? seen : largest;
            }
        }
        end_stream();
    }
    return of_magnitude<T>(largest);
}

template <typename T>
Error quantize_int4(int64_t threads, const T* x, int64_t rows, int64_t width, const Rounding& rounding,
                    uint8_t* packed) {
    const int64_t step = width < kPiece ? kPiece / width : 1;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, rows* width)) reduction(&& : ok)
    {
        const Buffer<int8_t> q(step * width + kBlockBytes);
        ok = q.ok();
#pragma omp for schedule(static)
        for (int64_t r0 = 0; r0 < rows; r0 += step) {
            if (!ok) continue;
            const int64_t r1 = r0 + step < rows ? r0 + step : rows;
            // The random bytes of a block belong to its 16 elements, so rounding starts where a block does.
            const int64_t first = r0 * width / kBlockBytes * kBlockBytes, last = r1 * width;
            rounding.apply(x + first, first, last - first, q.get());
            for (int64_t r = r0; r < r1; ++r) pack_int4(&q[r * width - first], width, packed + r * int4_bytes(width));
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

template <typename T>
void dequantize(int64_t threads, const int8_t* q, float scale, int64_t n, T* out) {
#pragma omp parallel for num_threads(team(threads, n)) schedule(static)
    for (int64_t first = 0; first < n; first += kRoundedChunk) {
        const int64_t count = n - first < kRoundedChunk ? n - first : kRoundedChunk;
        alignas(64) float scratch[kRoundedChunk];
        float* values = floats_for(out + first, scratch);
        for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(q[first + i]) * scale;
        store_all(values, count, out + first);
    }
}

}  // namespace

// x: n elements; out: one float, 0 for an empty tensor, NaN if x holds a NaN, else Inf if it holds an Inf.
GQC_KERNEL(absmax)(int64_t threads, const void* x, int64_t dtype, int64_t n, float* out) {
    typed(x, dtype, [&](auto* values) { *out = absmax(threads, values, n); });
    return nullptr;
}

// largest: one float, at least the largest |x|, or null to look for it; seed: two int64, or null to round to
// nearest; q: n bytes; scale: one float.
GQC_KERNEL(quantize)(int64_t threads, const void* x, int64_t dtype, int64_t n, const float* largest,
                     const int64_t* seed, int64_t node, int64_t bits, int64_t stochastic, int8_t* q, float* scale) {
    typed(x, dtype, [&](auto* values) {
        const float found = largest ? *largest : absmax(threads, values, n);
        quantize<false>(threads, values, n, Rounding(seed, node, bits, stochastic != 0, found, scale), q);
    });
    return nullptr;
}

// As quantize, which looks for the largest magnitude; it is written to `largest`, where a guess of it may be before, or
// NaN. One that is right spares a pass over x.
GQC_KERNEL(quantize_by_guess)(int64_t threads, const void* x, int64_t dtype, int64_t n, float* largest,
                              const int64_t* seed, int64_t node, int64_t bits, int64_t stochastic, int8_t* q,
                              float* scale) {
    const float guess = *largest;  // once: another thread may write a better one
    typed(x, dtype, [&](auto* values) {
        const bool guesses = is_guess(guess);
        *largest = guesses ? quantize<true>(threads, values, n, {seed, node, bits, stochastic != 0, guess, scale}, q)
                           : absmax(threads, values, n);
        if (guesses && bits_of(*largest) == bits_of(guess)) return;
        quantize<false>(threads, values, n, Rounding(seed, node, bits, stochastic != 0, *largest, scale), q);
    });
    return nullptr;
}

// As quantize for a matrix [rows, width], width > 0, and bits <= 4; packed: [rows, int4_bytes(width)] bytes.
GQC_KERNEL(quantize_int4)(int64_t threads, const void* x, int64_t dtype, int64_t rows, int64_t width,
                          const float* largest, const int64_t* seed, int64_t node, int64_t bits, int64_t stochastic,
                          uint8_t* packed, float* scale) {
    Error error = nullptr;
    typed(x, dtype, [&](auto* values) {
        const float found = largest ? *largest : absmax(threads, values, rows * width);
        const Rounding rounding(seed, node, bits, stochastic != 0, found, scale);
        error = quantize_int4(threads, values, rows, width, rounding, packed);
    });
    return error;
}

// packed: [rows, int4_bytes(width)] bytes; q: rows * width bytes.
GQC_KERNEL(unpack_int4)(int64_t threads, const uint8_t* packed, int64_t rows, int64_t width, int8_t* q) {
#pragma omp parallel for num_threads(team(threads, rows* width)) schedule(static)
    for (int64_t r = 0; r < rows; ++r)
        unpack_int4<int8_t, as_int8>(packed + r * int4_bytes(width), width, q + r * width);
    return nullptr;
}

// out: n elements.
GQC_KERNEL(dequantize)(int64_t threads, const int8_t* q, const float* scale, int64_t n, int64_t dtype, void* out) {
    typed(out, dtype, [&](auto* values) { dequantize(threads, q, *scale, n, values); });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
