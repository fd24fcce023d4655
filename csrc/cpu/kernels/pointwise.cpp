// Chains of elementwise operations on tensors.

#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kMostChunks = 256;
constexpr int64_t kLeastSummedTiles = 16;

// How the iteration is divided. Nothing here depends on the number of threads, so neither do sums.
struct Division {
    int64_t size;
    int64_t chunk;  // elements that one thread runs together, whole tiles

    explicit Division(const Plan& plan) : size(plan.size()) {
        const int64_t tile = tile_elements(plan), tiles = (size + tile - 1) / tile;
        const int64_t least = plan.count(Sum::first_axis) ? kLeastSummedTiles : 1;
        const int64_t each = (tiles + kMostChunks - 1) / kMostChunks;
        chunk = (each < least ? least : each) * tile;
    }

    int64_t chunks() const { return (size + chunk - 1) / chunk; }
};

bool look(const Program& program, const Division& division, int64_t threads, bool first_look) {
    bool ok = true;
#pragma omp parallel num_threads(team(threads, division.size)) reduction(&& : ok)
    {
        Program::Worker worker(program, first_look);
        ok = worker.ok();
#pragma omp for schedule(static) nowait
        for (int64_t c = 0; c < division.chunks(); ++c) {
            const int64_t first = c * division.chunk, left = division.size - first;
            if (ok) worker.run(first, left < division.chunk ? left : division.chunk, c);
        }
        if (ok) worker.merge();
    }
    return ok;
}

}  // namespace

// The arguments of Program (csrc/cpu/pointwise/program.h). largest: null, or of a program whose only result is int8, to
// which the largest magnitude is written, where a guess of it may be before, or NaN. One that is right spares a look.
GQC_KERNEL(pointwise)(int64_t threads, const int64_t* numbers, const void* const* inputs, void* const* outputs,
                      const int64_t* seed, float* largest) {
    const Division division{Plan(numbers)};
    Program program(numbers, inputs, outputs, seed, 0, division.chunks());
    if (const Error error = program.error()) return error;
    if (program.looks_twice()) {
        const float guess = largest ? *largest : NAN;  // once: another thread may write a better one
        const bool guesses = is_guess(guess);
        if (guesses) program.begin_guessing_look(guess);
        if (!look(program, division, threads, !guesses)) return kOutOfMemory;
        const bool is_right = guesses && bits_of(guess) == bits_of(program.largest(0));
        if (largest) *largest = program.largest(0);
        if (is_right) return nullptr;
        program.begin_second_look();
    }
    if (!look(program, division, threads, false)) return kOutOfMemory;
    program.finish();
    return nullptr;
}

}  // namespace gqc::GQC_ISA
