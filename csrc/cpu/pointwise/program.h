// A program that is interpreted tile by tile: what it reads is brought into the nearest cache, the values of a few
// vectors stay in registers from one instruction to the next (strip.h), results are written from the cache. A kernel
// that computes a matrix can hand over each tile of it as the program's input 0 (Type::computed), so that the matrix
// itself is never written; further matrices as input 1 and so on.
//
//     Program program(numbers, inputs, outputs, seed, most, chunks);
//     if (const Error error = program.error()) return error;
//     for (int look = program.looks_twice() ? 0 : 1; look < 2; ++look) {
//         each thread: Program::Worker worker(program, look == 0); worker.ok()
//             for its tiles: fill worker.computed(); worker.run(first, count, chunk);
//             worker.merge();
//         if (look == 0) program.begin_second_look();
//     }
//     program.finish();
#pragma once

#include <new>

#include "common/buffer.h"
#include "cpu/pointwise/target.h"

namespace gqc::GQC_ISA {

constexpr int64_t kTileElements = 1024;
constexpr int64_t kLongestRun = 512;  // the longest last axis that is summed

// Elements that are interpreted together, of which no two tiles share a byte of a mask or a block of random numbers:
// dropout draws 8 in a block, the rounding of int8 results 16. Tiles are whole rows, and whole cache lines of int8
// results, where rows are short. They do not depend on the results, so neither does the order of sums.
inline int64_t tile_elements(const Plan& plan) {
    constexpr int64_t kUnit = kBlockBytes;
    const auto whole_units = [](int64_t length) {
        int64_t multiple = length;
        while (multiple % kUnit) multiple *= 2;
        return multiple;
    };
    const int64_t rows = whole_units(plan.row()), runs = whole_units(plan.axes[2]);
    int64_t tile = rows <= kTileElements ? rows : runs <= kUnit * kLongestRun ? runs : kUnit;
    while (tile % 64 && 2 * tile <= kTileElements) tile *= 2;
    return tile < kTileElements ? kTileElements / tile * tile : tile;
}

class Program {
  public:
    // numbers: see plan.h. inputs: addresses of tensors, computed ones left out; outputs: likewise, that of an int8
    // output's scale after it. seed: two int64, or null where nothing draws random numbers. most: elements of a tile
    // that a caller computes, 0 if it computes none. chunks: how many parts of the iteration have sums of their own
    // over the first axis; these are added up in order, so they must not depend on the number of threads.
    Program(const int64_t* numbers, const void* const* inputs, void* const* outputs, const int64_t* seed, int64_t most,
            int64_t chunks)
        : plan_(numbers),
          inputs_(inputs),
          seed_(seed),
          most_(padded(most) + kStrip),  // strips of the last tile may start anywhere
          tile_(tile_elements(plan_)),
          chunks_(chunks),
          largest_(plan_.results),
          needed_(plan_.inputs + plan_.instructions),
          sums_(plan_.count(Sum::first_axis) * chunks * plan_.row()),
          targets_(plan_.results * static_cast<int64_t>(sizeof(Target))),
          roundings_(plan_.results * static_cast<int64_t>(sizeof(Rounding))) {
        if (error()) return;
        largest_.clear();
        sums_.clear();
        double* sums = sums_.get();
        for (int64_t i = 0, at = 0; i < plan_.results; ++i) {
            const Result& result = plan_.result[i];
            void* const to = outputs[at++];
            float* const scale = result.form == Form::int8 ? static_cast<float*>(outputs[at++]) : nullptr;
            new (target(i))
                Target{result, to, scale, sums, rounding(i), is_streamed(plan_.size() * bytes_of(result.form))};
            if (result.sum == Sum::first_axis) sums += chunks * plan_.row();
        }
        find_needed();
    }

    Error error() const {
        for (int64_t i = 0; i < plan_.instructions; ++i)
            if (!is_known(plan_.instruction[i].op)) return "the program has an unknown instruction";
        const bool ok = largest_.ok() && needed_.ok() && sums_.ok() && targets_.ok() && roundings_.ok();
        return ok ? nullptr : kOutOfMemory;
    }

    // Whether all tiles are computed twice: the scale of an int8 result must be known before its elements are.
    bool looks_twice() const { return plan_.has(Form::int8); }

    // How many inputs the caller computes.
    int64_t computed() const { return plan_.computed(); }

    // Writes the scales.
    void begin_second_look() {
        guesses_ = false;
        for (int64_t i = 0; i < plan_.results; ++i)
            if (plan_.result[i].form == Form::int8) round_by(i, float_of(largest_[i]));
    }

    // In the place of the first look, for a program whose only result is int8: a look that rounds by a guess of its
    // largest magnitude and finds it.
    void begin_guessing_look(float guess) {
        guesses_ = true;
        round_by(0, guess);
    }

    // The largest magnitude of a result that a look has found.
    float largest(int64_t result) const { return float_of(largest_[result]); }

    // Writes what only the last tile makes known.
    void finish() const {
        for (int64_t i = 0; i < plan_.results; ++i) target(i)->finish(plan_, chunks_, largest_[i]);
    }

    // What a thread works with in one look.
    class Worker {
      public:
        Worker(const Program& program, bool first_look)
            : program_(program),
              first_look_(first_look),
              capacity_(padded(program.tile_) + kBetweenSlots),
              steps_(
                  program.plan_, [&](int64_t i) { return is_needed(program.plan_.inputs + i); },
                  [&](int64_t i) { return looks_for(i); }, [&](int64_t i) { return is_written(i); }),
              buffers_((program.plan_.slots() + 1) * capacity_),
              computed_(program.most_ * program.computed()),
              slots_(program.plan_.slots()),
              largest_(program.plan_.results * static_cast<int64_t>(sizeof(Ints))),
              loader_(program.plan_, steps_, program.inputs_, capacity_, [&](int64_t i) { return is_needed(i); }),
              parts_(count_parts()) {
            if (!ok()) return;
            buffers_.clear();
            computed_.clear();
            largest_.clear();
            const Plan& plan = program.plan_;
            for (int64_t i = 0; i < plan.slots(); ++i) slots_[i] = buffers_.get() + i * capacity_;
            for (int64_t i = 0; i < plan.constants; ++i) {
                const float value = float_of(static_cast<uint32_t>(plan.constant[i]));
                for (int64_t j = 0; j < capacity_; ++j) slots_[plan.inputs + i][j] = value;
            }
        }

        bool ok() const {
            return steps_.ok() && loader_.ok() && buffers_.ok() && computed_.ok() && slots_.ok() && largest_.ok();
        }

        // Where the caller puts the elements of a computed input before it calls run().
        float* computed(int64_t input = 0) const { return computed_.get() + input * program_.most_; }

        // Elements first .. first + count of the iteration; first is a multiple of 8, or of 16 where the program has
        // int8 results, and the start of a row where it repeats or sums one.
        void run(int64_t first, int64_t count, int64_t chunk) {
            for (int64_t at = 0; at < count; at += program_.tile_) {
                const int64_t left = count - at;
                run_tile({first + at, left < program_.tile_ ? left : program_.tile_, slots_.get()}, at, chunk);
            }
        }

        // Call it once, when the thread has no more tiles.
        void merge() const {
            end_stream();
#pragma omp critical
            for (int64_t i = 0; i < program_.plan_.results; ++i) {
                const uint32_t found = static_cast<uint32_t>(largest_lane<kWide>(largest(i)));
                if (found > program_.largest_[i]) program_.largest_[i] = found;
            }
        }

      private:
        bool is_needed(int64_t i) const { return !first_look_ || program_.needed_[i]; }
        bool looks_for(int64_t result) const {
            const Form form = program_.plan_.result[result].form;
            return form == Form::int8 ? first_look_ || program_.guesses_ : form == Form::absmax && !first_look_;
        }
        bool is_written(int64_t result) const {
            return !first_look_ && program_.plan_.result[result].form != Form::absmax;
        }
        Ints& largest(int64_t result) const { return reinterpret_cast<Ints*>(largest_.get())[result]; }

        // In how many parts a tile is computed and written.
        int64_t count_parts() const {
            const Plan& plan = program_.plan_;
            int64_t parts = (program_.tile_ + kStrip - 1) / kStrip;
            for (int64_t i = 0; i < plan.results; ++i)
                if (is_written(i) && !steps_.writes(i)) parts += parts_of(plan.result[i].form, program_.tile_);
            return parts;
        }

        void run_tile(const Tile& tile, int64_t at, int64_t chunk) {
            const Plan& plan = program_.plan_;
            int64_t part = 0;
            const auto step = [&] { loader_.ask_for_next(tile, part++, parts_); };
            loader_.load(tile, computed_.get() + at, program_.most_, buffers_.get());
            float* const scratch = buffers_.get() + plan.slots() * capacity_;
            const auto write = [&](const Step& made, Values a, int64_t strip) __attribute__((always_inline)) {
                program_.target(made.written)->write_strip(made, a, tile, strip, scratch);
            };
            GQC_ISA::run(steps_, tile, program_.seed_, &largest(0), write, step);
            for (int64_t i = 0; i < plan.results; ++i) {
                if (is_written(i) && !steps_.writes(i)) program_.target(i)->write(plan, tile, chunk, scratch, step);
                if (looks_for(i) && !steps_.looks_for(i))
                    largest(i)[0] = raise(tile.slots[plan.result[i].slot], tile.count, largest(i)[0]);
            }
        }

        const Program& program_;
        const bool first_look_;
        const int64_t capacity_;  // of a slot
        const Steps steps_;
        const Buffer<float> buffers_, computed_;
        const Buffer<float*> slots_;
        const Buffer<char> largest_;  // as that of the program, lane by lane
        Loader loader_;
        const int64_t parts_;
    };

  private:
    // Room for what is written past the end of a slot, and what lets slots start at other places of a page: a core
    // takes a load for dependent on a store that has the same place in another page.
    static constexpr int64_t kBetweenSlots = 11 * kWide;

    static int64_t padded(int64_t elements) { return (elements + kStrip - 1) / kStrip * kStrip; }
    void round_by(int64_t i, float absmax) {
        const int64_t* p = plan_.result[i].parameters;
        new (rounding(i)) Rounding(seed_, p[0], p[1], p[2], absmax, target(i)->scale);
    }
    Target* target(int64_t i) const { return reinterpret_cast<Target*>(targets_.get()) + i; }
    Rounding* rounding(int64_t i) const { return reinterpret_cast<Rounding*>(roundings_.get()) + i; }

    // Which inputs and instructions int8 results are computed from: the first look leaves out the others.
    void find_needed() const {
        needed_.clear();
        const Buffer<uint8_t> live(plan_.slots());
        if (!live.ok()) {
            std::memset(needed_.get(), 1, static_cast<size_t>(plan_.inputs + plan_.instructions));
            return;
        }
        live.clear();
        for (int64_t i = 0; i < plan_.results; ++i)
            if (plan_.result[i].form == Form::int8) live[plan_.result[i].slot] = 1;
        for (int64_t i = plan_.instructions - 1; i >= 0; --i) {
            const Instruction& instruction = plan_.instruction[i];
            if (!live[instruction.result]) continue;
            needed_[plan_.inputs + i] = 1;
            live[instruction.result] = 0;
            for (const int64_t operand : instruction.operands) live[operand] = 1;
        }
        std::memcpy(needed_.get(), live.get(), static_cast<size_t>(plan_.inputs));
    }

    const Plan plan_;
    const void* const* const inputs_;
    const int64_t* const seed_;
    const int64_t most_, tile_, chunks_;
    const Buffer<uint32_t> largest_;  // bits of the largest magnitude of each result
    const Buffer<uint8_t> needed_;
    const Buffer<double> sums_;
    const Buffer<char> targets_, roundings_;
    bool guesses_ = false;
};

}  // namespace gqc::GQC_ISA
