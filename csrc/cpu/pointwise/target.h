// Where a result of a program goes, tile by tile.
#pragma once

#include "cpu/pointwise/store.h"
#include "cpu/rounding.h"

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
        switch (result.form) {
            case Form::boolean:
                return store_bool(values, count, static_cast<uint8_t*>(to) + first);
            case Form::bits:
                return store_bits(values, first, count, static_cast<uint8_t*>(to));
            default:
                with_form(to, result.form,
                          [&](auto* out) { store_run(values, count, out + first, scratch, streamed); });
        }
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
