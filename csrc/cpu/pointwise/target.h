// Where a result of a program goes, tile by tile.
#pragma once

#include <type_traits>

#include "cpu/float24.h"
#include "cpu/pointwise/store.h"
#include "cpu/rounding.h"
#include "cpu/write.h"

namespace gqc::GQC_ISA {

// In how many parts a tile is written.
inline int64_t parts_of(Form form, int64_t elements) {
    return form == Form::int8 ? (elements + kRoundedChunk - 1) / kRoundedChunk : 1;
}

struct Target {
    const Result& result;
    void* to;
    float* scale;              // of an int8 result
    double* sums;              // of a sum over the first axis: a row for each chunk
    const Rounding* rounding;  // of an int8 result, once its largest magnitude is known
    bool streamed;             // see cpu/stream.h

    // scratch: for a row of the iteration; step(): called parts_of() times.
    template <typename Step>
    void write(const Plan& plan, const Tile& tile, int64_t chunk, float* scratch, const Step& step) const {
        if (result.form == Form::int8) return round(tile, step);
        step();
        const float* values = tile.slots[result.slot];
        const int64_t first = tile.first, count = tile.count;
        if (result.sum == Sum::first_axis)
            return add_columns(values, first, count, plan.row(), scratch, sums + chunk * plan.row());
        if (result.sum == Sum::last_axis) {
            const int64_t width = plan.axes[2];
            return with_form(to, result.form, [&](auto* out) {
                for (int64_t at = 0; at < count; at += width)
                    store(out + (first + at) / width, sum_of_row(values + at, width));
            });
        }
        if (result.form == Form::float24) return write_rows(values, first, count, plan.axes[2], scratch);
        write_run(values, first, count, scratch);
    }

    // The strip of a tile from `at` on, whose values are in registers: by way of their slot where vectors do not fit.
    __attribute__((always_inline)) void write_strip(const Step& step, Values a, const Tile& tile, int64_t at,
                                                    float* scratch) const {
        const int64_t first = tile.first + at, left = tile.count - at;
        if (left >= kStrip && takes_vectors(first))
            return put_vectors(a, first, step.instruction->op == Op::to_bfloat16);
        float* const slot = step.save + at;
        each(a, [&](Floats x, int j) { put(slot + j * kWide, x); });
        const int64_t count = left < kStrip ? left : kStrip;
        if (result.form == Form::float24)
            write_rows(slot, first, count, kWholeLines24, scratch);
        else
            write_run(slot, first, count, scratch);
    }

    void write_rows(const float* values, int64_t first, int64_t count, int64_t width, float* scratch) const {
        write_rows24(values, first / width, count / width, width, to, scratch, streamed);
    }

    void write_run(const float* values, int64_t first, int64_t count, float* scratch) const {
        switch (result.form) {
            case Form::boolean:
                return store_bool(values, count, static_cast<uint8_t*>(to) + first);
            case Form::bits:
                return store_bits(values, first, count, static_cast<uint8_t*>(to));
            default:
                with_form(to, result.form, [&](auto* out) {
                    using T = std::remove_pointer_t<decltype(out)>;
                    write_all(values, count, out + first, reinterpret_cast<T*>(scratch), streamed);
                });
        }
    }

    bool takes_vectors(int64_t first) const {
        const uintptr_t at = reinterpret_cast<uintptr_t>(to) + static_cast<uintptr_t>(first * bytes_of(result.form));
        return !streamed || at % kStreamedVector == 0;
    }

    // narrowed: the values are numbers of bfloat16.
    __attribute__((always_inline)) void put_vectors([[maybe_unused]] Values a, [[maybe_unused]] int64_t first,
                                                    [[maybe_unused]] bool narrowed) const {
#if defined(__AVX2__)
        if (result.form == Form::float32) {
            float* const out = static_cast<float*>(to) + first;
            each(a, [&](Floats x, int j) { put_vector(x, out + j * kWide, streamed); });
#    if defined(__AVX512F__)
        } else if (result.form == Form::float24) {
            uint8_t* const out = static_cast<uint8_t*>(to) + first * bytes_of(Form::float24);
            each_four(a, [&](Floats x, Floats y, Floats z, Floats w, int j) {
                store_lines(x, y, z, w, out + j * kWide * bytes_of(Form::float24), streamed);
            });
#    endif
        } else if (result.form == Form::bfloat16) {
            bfloat16* const out = static_cast<bfloat16*>(to) + first;
            if (narrowed)
                each_two(a,
                         [&](Floats x, Floats y, int j) { put_vector(high_halves(x, y), out + j * kWide, streamed); });
            else
                each_two(a, [&](Floats x, Floats y, int j) {
                    put_vector(high_halves(in_bfloat16(x), in_bfloat16(y)), out + j * kWide, streamed);
                });
        } else {
            uint8_t* const bytes = static_cast<uint8_t*>(to) + first / 8;
            each(a, [&](Floats x, int j) { store_mask(x, bytes + j * kWide / 8); });
        }
#endif
    }

    template <typename Step>
    void round(const Tile& tile, const Step& step) const {
        const float* values = tile.slots[result.slot];
        int8_t* const q = static_cast<int8_t*>(to) + tile.first;
        for (int64_t at = 0; at < tile.count; at += kRoundedChunk) {
            const int64_t left = tile.count - at, count = left < kRoundedChunk ? left : kRoundedChunk;
            step();
            rounding->apply(values + at, tile.first + at, count, q + at, streamed);
        }
    }

    // Adds up the chunks, in order.
    void finish(const Plan& plan, int64_t chunks, uint32_t largest) const {
        if (result.form == Form::absmax) *static_cast<float*>(to) = float_of(largest);
        if (result.sum != Sum::first_axis) return;
        with_form(to, result.form, [&](auto* out) {
            for (int64_t c = 0; c < plan.row(); ++c) {
                double sum = 0;
                for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk * plan.row() + c];
                store(out + c, static_cast<float>(sum));
            }
        });
    }
};

}  // namespace gqc::GQC_ISA
