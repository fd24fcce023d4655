// Where the values of a product go: to memory, to their largest magnitude alone, or to int8.
//
// Each output makes a Worker a thread. It says where the float32 values of a block of rows are collected, one row
// behind the other, and is then told that the block is complete.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/buffer.h"
#include "cpu/gemm/positive_bits.h"
#include "cpu/rounding.h"
#include "cpu/stream.h"
#include "cpu/write.h"

namespace gqc::GQC_ISA {

// Rounds values to a dtype.
inline void round_all(float* values, int64_t count, int64_t dtype) {
    typed(static_cast<const void*>(nullptr), dtype, [&](auto* of_type) {
        using Type = std::remove_const_t<std::remove_pointer_t<decltype(of_type)>>;
        if (std::is_same_v<Type, float>) return;
        for (int64_t i = 0; i < count; ++i) {
            Type rounded;
            store(&rounded, values[i]);
            values[i] = load(rounded);
        }
    });
}

// Rounding is monotone: the largest of rounded values is the largest value, rounded.
inline float rounded_largest(uint32_t largest, int64_t dtype) {
    float value = float_of(largest);
    round_all(&value, 1, dtype);
    return value;
}

struct FloatOutput {
    static constexpr bool kCollects = true, kFindsLargest = true;

    void* out;  // [m, n] of a dtype
    int64_t dtype;
    int64_t n;
    PositiveBits positive;
    bool streamed;

    class Worker {
      public:
        Worker(const FloatOutput& output, int64_t block_rows)
            : output_(output), values_(block_rows * output.n), rounded_(output.streamed ? block_rows * output.n : 0) {}
        ~Worker() {
            if (output_.streamed) end_stream();
        }
        bool ok() const { return values_.ok() && rounded_.ok(); }
        float* values() const { return values_.get(); }

        void complete(int64_t i0, int64_t count) const {
            const int64_t elements = count * output_.n;
            if (output_.positive.bits) {
                round_all(values_.get(), elements, output_.dtype);
                output_.positive.write(values_.get(), i0, count);
            }
            typed(output_.out, output_.dtype, [&](auto* out) {
                auto* const scratch = reinterpret_cast<decltype(out)>(rounded_.get());
                write_all(values_.get(), elements, out + i0 * output_.n, scratch, output_.streamed);
            });
        }

      private:
        const FloatOutput& output_;
        Buffer<float> values_, rounded_;
    };
};

struct LargestOnly {
    static constexpr bool kCollects = false, kFindsLargest = true;

    class Worker {
      public:
        Worker(const LargestOnly&, int64_t) {}
        bool ok() const { return true; }
        float* values() const { return nullptr; }
        void complete(int64_t, int64_t) const {}
    };
};

// q = what quantize gives for the values rounded to a dtype.
struct Int8Output {
    static constexpr bool kCollects = true, kFindsLargest = false;

    int8_t* q;  // [m, n]
    int64_t dtype;
    int64_t n;
    Rounding rounding;
    PositiveBits positive;
    bool streamed;

    class Worker {
      public:
        Worker(const Int8Output& output, int64_t block_rows)
            : output_(output), values_(block_rows * output.n), rounded_(output.streamed ? block_rows * output.n : 0) {}
        ~Worker() {
            if (output_.streamed) end_stream();
        }
        bool ok() const { return values_.ok() && rounded_.ok(); }
        float* values() const { return values_.get(); }

        void complete(int64_t i0, int64_t count) const {
            const int64_t first = i0 * output_.n, elements = count * output_.n;
            round_all(values_.get(), elements, output_.dtype);
            if (output_.positive.bits) output_.positive.write(values_.get(), i0, count);
            int8_t* const to = output_.streamed ? rounded_.get() : output_.q + first;
            output_.rounding.apply(values_.get(), first, elements, to);
            if (output_.streamed) stream(to, elements, output_.q + first);
        }

      private:
        const Int8Output& output_;
        Buffer<float> values_;
        Buffer<int8_t> rounded_;
    };
};

}  // namespace gqc::GQC_ISA
