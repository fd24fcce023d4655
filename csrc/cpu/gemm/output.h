// Where the values of a product go: to memory, to their largest magnitude alone, or to int8.
//
// Each output makes a Worker a thread. It is given the values of a block of rows, panel by panel, and then told that
// the block is complete.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/shape.h"
#include "cpu/gemm/vector.h"
#include "cpu/rounding.h"

namespace gqc::GQC_ISA {

// Largest magnitudes lane by lane, so that no row needs a horizontal maximum.
struct Peaks {
    Sums lanes = {};

    void raise(Floats y) {
        const Sums m = magnitudes(y);
        lanes = m > lanes ? m : lanes;
    }
    uint32_t largest() const {
        uint32_t result = 0;
        for (int lane = 0; lane < kLanes; ++lane) result = lanes[lane] > result ? lanes[lane] : result;
        return result;
    }
};

// Rounded to Out and back. Rounding is monotone: the largest of rounded values is the largest value, rounded.
template <typename Out>
inline float rounded_to(float y) {
    Out rounded;
    store(&rounded, y);
    return load(rounded);
}

// One bit a value, set where it is not <= 0; a row takes whole bytes.
struct PositiveBits {
    uint8_t* bits;  // [m, (n + 7) / 8], or null
    int64_t n;

    template <typename Out, int vectors>
    void write(const Floats (&y)[vectors], int64_t i, int64_t j0, int64_t count) const {
        uint64_t positive = 0;
        for (int v = 0; v < vectors; ++v) {
            Floats rounded = y[v];
            for (int lane = 0; lane < kLanes && sizeof(Out) < sizeof(float); ++lane)
                rounded[lane] = rounded_to<Out>(rounded[lane]);
            positive |= static_cast<uint64_t>(positive_lanes(rounded)) << v * kLanes;
        }
        uint8_t* to = bits + i * ((n + 7) / 8) + j0 / 8;
        for (int64_t b = 0; b < (count + 7) / 8; ++b) to[b] = static_cast<uint8_t>(positive >> 8 * b);
    }
};

// Hands a row's panel to an output's worker, with zeros behind the last column.
template <int vectors, typename Worker>
inline void write_row(Floats (&y)[vectors], int64_t i, int64_t j0, int64_t columns, Worker& worker) {
    constexpr int64_t kLast = (vectors - 1) * kLanes;
    for (int64_t j = columns > kLast ? columns - kLast : kLanes; j < kLanes; ++j) y[vectors - 1][j] = 0;
    worker.write(y, i, j0, columns);
}

template <typename Out>
struct FloatOutput {
    Out* out;  // [m, n]
    int64_t n;
    PositiveBits positive;

    class Worker {
      public:
        Worker(const FloatOutput& output, int64_t) : output_(output) {}
        bool ok() const { return true; }

        template <int vectors>
        void write(const Floats (&y)[vectors], int64_t i, int64_t j0, int64_t count) {
            for (const Floats& v : y) peaks_.raise(v);
            Out* to = output_.out + i * output_.n + j0;
            if (sizeof(Out) == sizeof(float) && count == vectors * kLanes)
                std::memcpy(to, &y, sizeof y);
            else
                write_part(y, count, to);
            if (output_.positive.bits) output_.positive.template write<Out>(y, i, j0, count);
        }
        void complete(int64_t, int64_t) {}
        uint32_t largest() const { return peaks_.largest(); }

      private:
        template <int vectors>
        static void write_part(const Floats (&y)[vectors], int64_t count, Out* to) {
            float values[vectors * kLanes];
            std::memcpy(values, &y, sizeof y);
            for (int64_t j = 0; j < count; ++j) store(&to[j], values[j]);
        }

        const FloatOutput& output_;
        Peaks peaks_;
    };
};

struct PeakOutput {
    class Worker {
      public:
        Worker(const PeakOutput&, int64_t) {}
        bool ok() const { return true; }
        template <int vectors>
        void write(const Floats (&y)[vectors], int64_t, int64_t, int64_t) {
            for (const Floats& v : y) peaks_.raise(v);
        }
        void complete(int64_t, int64_t) {}
        uint32_t largest() const { return peaks_.largest(); }

      private:
        Peaks peaks_;
    };
};

// q = what quantize gives for the values rounded to Out.
template <typename Out>
struct Int8Output {
    int8_t* q;  // [m, n]
    int64_t n;
    Rounding rounding;
    PositiveBits positive;

    class Worker {
      public:
        Worker(const Int8Output& output, int64_t block_rows)
            : output_(output), values_(block_rows * output.n), first_row_(-1) {}
        bool ok() const { return values_.ok(); }

        template <int vectors>
        void write(const Floats (&y)[vectors], int64_t i, int64_t j0, int64_t count) {
            if (first_row_ < 0) first_row_ = i;
            float values[vectors * kLanes];
            std::memcpy(values, &y, sizeof y);
            float* to = &values_[(i - first_row_) * output_.n + j0];
            for (int64_t j = 0; j < count; ++j) to[j] = rounded_to<Out>(values[j]);
            if (output_.positive.bits) output_.positive.template write<Out>(y, i, j0, count);
        }
        void complete(int64_t i0, int64_t count) {
            const int64_t first = i0 * output_.n;
            output_.rounding.apply(values_.get(), first, count * output_.n, output_.q + first);
            first_row_ = -1;
        }
        uint32_t largest() const { return 0; }

      private:
        const Int8Output& output_;
        Buffer<float> values_;
        int64_t first_row_;
    };
};

}  // namespace gqc::GQC_ISA
