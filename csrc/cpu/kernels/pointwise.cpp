// Chains of elementwise operations as a program that is interpreted tile by tile: the values of a tile stay in the
// cache between instructions, and what it costs to look at an instruction is shared by a thousand elements.

#include <cstring>
#include <new>

#include "common/buffer.h"
#include "cpu/pointwise/instructions.h"
#include "cpu/pointwise/load.h"
#include "cpu/pointwise/plan.h"
#include "cpu/pointwise/store.h"
#include "cpu/rounding.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kTileElements = 1024;
constexpr int64_t kLongestTile = 8 * 512;  // 8 rows of the longest last axis that is summed
constexpr int64_t kMostChunks = 256;
constexpr int64_t kLeastSummedTiles = 16;

// How the iteration is divided. Nothing here depends on the number of threads, so neither do sums.
struct Division {
    int64_t tile;  // elements, a multiple of 8: no two tiles share a byte of a mask or a block of random bits
    int64_t tiles;
    int64_t chunk;  // tiles that one thread runs together

    explicit Division(const Plan& plan) {
        const int64_t rows = whole_bytes(plan.row()), runs = whole_bytes(plan.axes[2]);
        tile = rows <= kTileElements ? rows : runs <= kLongestTile ? runs : 8;
        if (tile < kTileElements) tile = kTileElements / tile * tile;
        tiles = (plan.size() + tile - 1) / tile;
        const int64_t least = plan.has(Sum::first_axis) ? kLeastSummedTiles : 1;
        chunk = (tiles + kMostChunks - 1) / kMostChunks;
        chunk = chunk < least ? least : chunk;
    }

    int64_t chunks() const { return (tiles + chunk - 1) / chunk; }

  private:
    // The least multiple of `length` elements that is one of 8.
    static int64_t whole_bytes(int64_t length) {
        int64_t multiple = length;
        while (multiple % 8) multiple *= 2;
        return multiple;
    }
};

// What a thread works with.
struct Worker {
    const Plan& plan;
    const int64_t* seed;
    Tile tile;
    Loader loader;
    uint32_t* largest;  // bits of the largest magnitude of each result
    float* row;         // scratch for a row

    Worker(const Plan& plan, const void* const* inputs, const int64_t* seed, float** slots, float* buffers,
           int64_t capacity, uint32_t* largest)
        : plan(plan),
          seed(seed),
          tile{0, 0, slots},
          loader{plan, inputs, buffers, capacity},
          largest(largest),
          row(buffers + plan.slots() * capacity) {
        for (int64_t i = plan.inputs; i < plan.slots(); ++i) slots[i] = buffers + i * capacity;
        for (int64_t i = 0; i < plan.constants; ++i) {
            const float value = float_of(static_cast<uint32_t>(plan.constant[i]));
            for (int64_t j = 0; j < capacity; ++j) slots[plan.inputs + i][j] = value;
        }
    }

    // False if the program has an instruction that there is not.
    bool run(int64_t first, int64_t count) {
        tile.first = first;
        tile.count = count;
        loader.load(tile);
        for (int64_t i = 0; i < plan.instructions; ++i)
            if (!execute(plan.instruction[i], tile, seed)) return false;
        return true;
    }

    void raise_largest(int64_t result) {
        largest[result] = raise(tile.slots[plan.result[result].slot], tile.count, largest[result]);
    }
};

struct Call {
    const Plan& plan;
    const Division& division;
    const void* const* inputs;
    const int64_t* seed;
    uint32_t* largest;  // as that of a worker

    // Runs the program and calls each(worker, chunk) after every tile.
    template <typename F>
    Error run(int64_t threads, const F& each) const {
        const int64_t capacity = (division.tile + kWide - 1) / kWide * kWide, n = plan.size();
        bool ok = true, known = true;
#pragma omp parallel num_threads(team(threads, n)) reduction(&& : ok, known)
        {
            const Buffer<float> buffers((plan.slots() + 1) * capacity);
            const Buffer<float*> slots(plan.slots());
            const Buffer<uint32_t> seen(plan.results);
            ok = buffers.ok() && slots.ok() && seen.ok();
            if (ok) {
                buffers.clear();
                seen.clear();
                Worker worker(plan, inputs, seed, slots.get(), buffers.get(), capacity, seen.get());
#pragma omp for schedule(static) nowait
                for (int64_t c = 0; c < division.chunks(); ++c) {
                    const int64_t end = (c + 1) * division.chunk;
                    const int64_t last = end < division.tiles ? end : division.tiles;
                    for (int64_t t = c * division.chunk; t < last && known; ++t) {
                        const int64_t first = t * division.tile, left = n - first;
                        known = worker.run(first, left < division.tile ? left : division.tile);
                        if (known) each(worker, c);
                    }
                }
#pragma omp critical
                for (int64_t i = 0; i < plan.results; ++i) largest[i] = seen[i] > largest[i] ? seen[i] : largest[i];
            }
        }
        return !ok ? kOutOfMemory : known ? nullptr : "the program has an unknown instruction";
    }
};

// Where a result goes.
struct Target {
    const Result& result;
    void* to;
    double* sums;       // of each chunk and column
    Rounding rounding;  // of an int8 result

    void write(Worker& worker, int64_t index, int64_t chunk) const {
        const Plan& plan = worker.plan;
        const float* values = worker.tile.slots[result.slot];
        const int64_t first = worker.tile.first, count = worker.tile.count;
        if (result.sum == Sum::first_axis)
            return add_columns(values, first, count, plan.row(), worker.row, sums + chunk * plan.row());
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
            case Form::absmax:
                return worker.raise_largest(index);
            case Form::int8:
                return rounding.apply(values, first, count, static_cast<int8_t*>(to) + first);
            default:
                with_form(to, result.form, [&](auto* out) { store_run(values, count, out + first); });
        }
    }

    // Adds up the chunks, in order.
    void finish(const Plan& plan, const Division& division) const {
        if (result.sum != Sum::first_axis) return;
        with_form(to, result.form, [&](auto* out) {
            for (int64_t c = 0; c < plan.row(); ++c) {
                double sum = 0;
                for (int64_t chunk = 0; chunk < division.chunks(); ++chunk) sum += sums[chunk * plan.row() + c];
                store(out + c, static_cast<float>(sum));
            }
        });
    }
};

}  // namespace

// numbers: see csrc/cpu/pointwise/plan.h; inputs, outputs: addresses of tensors, that of an int8 output's scale after
// it; seed: two int64, or null where nothing draws random numbers.
GQC_KERNEL(pointwise)(int64_t threads, const int64_t* numbers, const void* const* inputs, void* const* outputs,
                      const int64_t* seed) {
    const Plan plan(numbers);
    const Division division(plan);
    int64_t summed = 0;
    for (int64_t i = 0; i < plan.results; ++i) summed += plan.result[i].sum == Sum::first_axis;
    const int64_t sums_each = division.chunks() * plan.row();
    const Buffer<uint32_t> largest(plan.results);
    const Buffer<double> sums(summed * sums_each);
    const Buffer<char> memory(plan.results * static_cast<int64_t>(sizeof(Target)));
    if (!largest.ok() || !sums.ok() || !memory.ok()) return kOutOfMemory;
    largest.clear();
    sums.clear();
    const Call call{plan, division, inputs, seed, largest.get()};
    if (plan.has(Form::int8)) {
        const Error error = call.run(threads, [&](Worker& worker, int64_t) {
            for (int64_t i = 0; i < plan.results; ++i)
                if (plan.result[i].form == Form::int8) worker.raise_largest(i);
        });
        if (error) return error;
    }
    Target* const targets = reinterpret_cast<Target*>(memory.get());
    for (int64_t i = 0, at = 0, sum = 0; i < plan.results; ++i) {
        const Result& result = plan.result[i];
        const int64_t* rounding = result.parameters;
        float unused;
        void* const to = outputs[at++];
        float* const scale = result.form == Form::int8 ? static_cast<float*>(outputs[at++]) : &unused;
        double* const columns = sums.get() + (result.sum == Sum::first_axis ? sum++ : 0) * sums_each;
        new (targets + i) Target{result, to, columns,
                                 Rounding(seed, rounding[0], rounding[1], rounding[2], float_of(largest[i]), scale)};
    }
    const Error error = call.run(threads, [&](Worker& worker, int64_t chunk) {
        for (int64_t i = 0; i < plan.results; ++i) targets[i].write(worker, i, chunk);
    });
    if (error) return error;
    for (int64_t i = 0; i < plan.results; ++i) {
        if (plan.result[i].form == Form::absmax) *static_cast<float*>(targets[i].to) = float_of(largest[i]);
        targets[i].finish(plan, division);
    }
    return nullptr;
}

}  // namespace gqc::GQC_ISA
