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
//
// What takes long to compile is in kernels/program.cpp, once for all kernels that run programs.
#pragma once

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
            int64_t chunks);

    Error error() const;

    // Whether all tiles are computed twice: the scale of an int8 result must be known before its elements are.
    bool looks_twice() const { return plan_.has(Form::int8); }

    // How many inputs the caller computes.
    int64_t computed() const { return plan_.computed(); }

    // Writes the scales.
    void begin_second_look();

    // In the place of the first look, for a program whose only result is int8: a look that rounds by a guess of its
    // largest magnitude and finds it.
    void begin_guessing_look(float guess);

    // The largest magnitude of a result that a look has found.
    float largest(int64_t result) const { return float_of(largest_[result]); }

    // Writes what only the last tile makes known.
    void finish() const;

    // What a thread works with in one look.
    class Worker {
      public:
        Worker(const Program& program, bool first_look);

        bool ok() const {
            return steps_.ok() && loader_.ok() && buffers_.ok() && computed_.ok() && slots_.ok() && largest_.ok();
        }

        // Where the caller puts the elements of a computed input before it calls run().
        float* computed(int64_t input = 0) const { return computed_.get() + input * program_.most_; }

        // Elements first .. first + count of the iteration; first is a multiple of 8, or of 16 where the program has
        // int8 results, and the start of a row where it repeats or sums one.
        void run(int64_t first, int64_t count, int64_t chunk);

        // Call it once, when the thread has no more tiles.
        void merge() const;

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
        int64_t count_parts() const;

        void run_tile(const Tile& tile, int64_t at, int64_t chunk);

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
    void round_by(int64_t i, float absmax);
    Target* target(int64_t i) const { return reinterpret_cast<Target*>(targets_.get()) + i; }
    Rounding* rounding(int64_t i) const { return reinterpret_cast<Rounding*>(roundings_.get()) + i; }

    // Which inputs and instructions int8 results are computed from: the first look leaves out the others.
    void find_needed() const;

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
