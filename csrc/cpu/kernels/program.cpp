// Interprets programs, see cpu/pointwise/program.h. It is no kernel, but part of several.

#include <new>

#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {

Program::Program(const int64_t* numbers, const void* const* inputs, void* const* outputs, const int64_t* seed,
                 int64_t most, int64_t chunks)
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
        new (target(i)) Target{result, to, scale, sums, rounding(i), is_streamed(plan_.size() * bytes_of(result.form))};
        if (result.sum == Sum::first_axis) sums += chunks * plan_.row();
    }
    find_needed();
}

Error Program::error() const {
    for (int64_t i = 0; i < plan_.instructions; ++i)
        if (!is_known(plan_.instruction[i].op)) return "the program has an unknown instruction";
    const bool ok = largest_.ok() && needed_.ok() && sums_.ok() && targets_.ok() && roundings_.ok();
    return ok ? nullptr : kOutOfMemory;
}

void Program::begin_second_look() {
    guesses_ = false;
    for (int64_t i = 0; i < plan_.results; ++i)
        if (plan_.result[i].form == Form::int8) round_by(i, float_of(largest_[i]));
}

void Program::begin_guessing_look(float guess) {
    guesses_ = true;
    round_by(0, guess);
}

void Program::finish() const {
    for (int64_t i = 0; i < plan_.results; ++i) target(i)->finish(plan_, chunks_, largest_[i]);
}

void Program::round_by(int64_t i, float absmax) {
    const int64_t* p = plan_.result[i].parameters;
    new (rounding(i)) Rounding(seed_, p[0], p[1], p[2], absmax, target(i)->scale);
}

void Program::find_needed() const {
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

Program::Worker::Worker(const Program& program, bool first_look)
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

void Program::Worker::run(int64_t first, int64_t count, int64_t chunk) {
    for (int64_t at = 0; at < count; at += program_.tile_) {
        const int64_t left = count - at;
        run_tile({first + at, left < program_.tile_ ? left : program_.tile_, slots_.get()}, at, chunk);
    }
}

void Program::Worker::merge() const {
    end_stream();
#pragma omp critical
    for (int64_t i = 0; i < program_.plan_.results; ++i) {
        const uint32_t found = static_cast<uint32_t>(largest_lane<kWide>(largest(i)));
        if (found > program_.largest_[i]) program_.largest_[i] = found;
    }
}

int64_t Program::Worker::count_parts() const {
    const Plan& plan = program_.plan_;
    int64_t parts = (program_.tile_ + kStrip - 1) / kStrip;
    for (int64_t i = 0; i < plan.results; ++i)
        if (is_written(i) && !steps_.writes(i)) parts += parts_of(plan.result[i].form, program_.tile_);
    return parts;
}

void Program::Worker::run_tile(const Tile& tile, int64_t at, int64_t chunk) {
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

}  // namespace gqc::GQC_ISA
