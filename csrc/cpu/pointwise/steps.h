// How instructions are carried out on a strip, a few vectors that stay in registers from one instruction to the next.
#pragma once

#include "common/buffer.h"
#include "cpu/float24.h"
#include "cpu/pointwise/plan.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {

constexpr int kStripVectors = kWide == 16 ? 16 : 8;
constexpr int64_t kStrip = kStripVectors * kWide;

// Operands of the operations that are applied in registers; 0 for those that work from memory to memory.
inline int operands_in_registers(Op op) {
    switch (op) {
        case Op::neg:
        case Op::abs:
        case Op::relu:
        case Op::square:
        case Op::leaky_relu:
        case Op::logical_not:
        case Op::to_bfloat16:
            return 1;
        case Op::add:
        case Op::sub:
        case Op::mul:
        case Op::div:
        case Op::minimum:
        case Op::maximum:
        case Op::threshold_backward:
        case Op::leaky_relu_backward:
        case Op::lt:
        case Op::le:
        case Op::gt:
        case Op::ge:
        case Op::eq:
        case Op::ne:
        case Op::logical_and:
        case Op::logical_or:
        case Op::drop:
            return 2;
        case Op::where:
            return 3;
        default:
            return 0;
    }
}

inline int operands_of(Op op) {
    constexpr int kMost = 3;  // those that an instruction does not have are the first one again, or not read
    const int in_registers = operands_in_registers(op);
    return in_registers ? in_registers : kMost;
}

// Whether vectors of a result can be written as they are.
inline bool goes_from_registers([[maybe_unused]] const Plan& plan, [[maybe_unused]] const Result& result) {
#if defined(__AVX2__)
    const Form form = result.form;
#    if defined(__AVX512F__)
    if (form == Form::float24) return plan.axes[2] % kWholeLines24 == 0;
#    endif
    return result.sum == Sum::none && (form == Form::float32 || form == Form::bfloat16 || form == Form::bits);
#else
    return false;
#endif
}

constexpr int64_t kNone = -1;

// An instruction on a strip. Where `held` is kNone it works from memory to memory. Otherwise operand `held` is in
// registers, which get the result.
struct Step {
    const Instruction* instruction;
    int64_t held;
    int64_t loaded;     // the slot from which that operand comes first, or kNone
    int64_t others[2];  // the slots of the other operands, in order, or kNone
    bool saves;         // the result to its slot
    int64_t result;     // of the program, whose largest magnitude is looked for in registers, or kNone
    int64_t written;    // a result of the program that goes from registers to its output, or kNone

    // Where these slots are for a tile.
    const float* load;
    const float* other[2];
    float* save;
    bool load_repeats, other_repeats[2];
};

// The steps of the instructions that a look needs.
class Steps {
  public:
    // is_needed(i): of instruction i; is_looked_for(i): whether the largest magnitude of result i is; is_written(i):
    // whether result i goes to its output.
    template <typename IsNeeded, typename IsLookedFor, typename IsWritten>
    Steps(const Plan& plan, const IsNeeded& is_needed, const IsLookedFor& is_looked_for, const IsWritten& is_written)
        : plan_(plan),
          steps_(plan.instructions + 1),
          looked_for_(plan.results + 1),
          written_(plan.results + 1),
          repeats_(plan.slots() + 1) {
        if (!ok()) return;
        looked_for_.clear();
        written_.clear();
        for (int64_t i = 0; i < plan.instructions; ++i)
            if (is_needed(i)) steps_[count_++].instruction = plan.instruction + i;
        int64_t held = kNone;
        for (int64_t i = 0; i < count_; ++i) held = plan_step(i, held);
        for (int64_t r = 0; r < plan.results; ++r) plan_result(r, is_looked_for(r), is_written(r));
        find_repeated();
    }

    bool ok() const { return steps_.ok() && looked_for_.ok() && written_.ok() && repeats_.ok(); }
    const Step* begin() const { return steps_.get(); }
    const Step* end() const { return steps_.get() + count_; }

    // Whether a step looks for the largest magnitude of result i.
    bool looks_for(int64_t result) const { return looked_for_[result]; }

    // Whether a step writes result i.
    bool writes(int64_t result) const { return written_[result]; }

    // Whether a slot has one number for each vector: its numbers are alike within each vector, as those of constants
    // and of inputs without the last axis.
    bool repeats(int64_t slot) const { return repeats_[slot]; }

    void bind(float* const* slots) const {
        for (int64_t i = 0; i < count_; ++i) {
            Step& step = steps_[i];
            step.save = slots[step.instruction->result];
            if (step.held == kNone) continue;
            step.load = slots[step.loaded == kNone ? 0 : step.loaded];
            for (int k = 0; k < 2; ++k) step.other[k] = slots[step.others[k] == kNone ? 0 : step.others[k]];
        }
    }

  private:
    static bool reads(const Instruction& instruction, int64_t slot) {
        for (int k = 0; k < operands_of(instruction.op); ++k)
            if (instruction.operands[k] == slot) return true;
        return false;
    }

    // Whether a step after i reads what is in a slot then.
    bool is_read_after(int64_t i, int64_t slot) const {
        if (steps_[i].instruction->result == slot) return false;
        for (++i; i < count_; ++i) {
            if (reads(*steps_[i].instruction, slot)) return true;
            if (steps_[i].instruction->result == slot) return false;
        }
        return false;
    }

    // held: the slot whose value, the result of the step before, is in registers, or kNone. Gives the same after step
    // i.
    int64_t plan_step(int64_t i, int64_t held) {
        const Instruction& instruction = *steps_[i].instruction;
        const int count = operands_in_registers(instruction.op);
        Step step{&instruction, kNone,   kNone, {kNone, kNone}, count == 0, kNone,
                  kNone,        nullptr, {},    nullptr,        false,      {}};
        const int first = count == 3 ? 1 : 0;  // not the mask of a choice
        for (int k = first; held != kNone && k < count && step.held == kNone; ++k)
            if (instruction.operands[k] == held) step.held = k;
        bool saves_held = held != kNone && (is_read_after(i, held) || (count == 0 && reads(instruction, held)));
        if (count != 0) {
            if (step.held == kNone) {
                step.held = first;
                step.loaded = instruction.operands[step.held];
            }
            for (int k = 0, other = 0; k < count; ++k) {
                if (k == step.held) continue;
                saves_held = saves_held || (held != kNone && instruction.operands[k] == held);
                step.others[other++] = instruction.operands[k];
            }
        }
        if (saves_held) steps_[i - 1].saves = true;
        steps_[i] = step;
        return count == 0 ? kNone : instruction.result;
    }

    void plan_result(int64_t r, bool is_looked_for, bool is_written) {
        int64_t last = count_ - 1;
        while (last >= 0 && steps_[last].instruction->result != plan_.result[r].slot) --last;
        if (last < 0) return;
        Step& step = steps_[last];
        if (is_written && step.held != kNone && step.written == kNone && goes_from_registers(plan_, plan_.result[r])) {
            step.written = r;
            written_[r] = 1;
        } else if (is_written) {
            step.saves = true;
        }
        if (!is_looked_for) return;
        if (step.held != kNone && step.result == kNone) {
            step.result = r;
            looked_for_[r] = 1;
        } else {
            step.saves = true;
        }
    }

    bool repeats_if_any(int64_t slot) const { return slot != kNone && repeats_[slot]; }

    void find_repeated() {
        for (int64_t slot = 0; slot < plan_.slots(); ++slot) repeats_[slot] = is_repeated(slot);
        for (int64_t i = 0; i < count_; ++i)
            if (steps_[i].held == kNone)
                for (const int64_t slot : steps_[i].instruction->operands) repeats_[slot] = 0;
            else if (steps_[i].others[1] != kNone)  // the mask of a choice
                repeats_[steps_[i].others[0]] = 0;
        for (int64_t r = 0; r < plan_.results; ++r) repeats_[plan_.result[r].slot] = 0;
        for (int64_t i = 0; i < count_; ++i) {
            Step& step = steps_[i];
            step.load_repeats = repeats_if_any(step.loaded);
            for (int k = 0; k < 2; ++k) step.other_repeats[k] = repeats_if_any(step.others[k]);
        }
    }
    bool is_repeated(int64_t slot) const {
        if (slot >= plan_.inputs) return slot < plan_.inputs + plan_.constants;
        const Input& input = plan_.input[slot];
        const bool has_numbers = input.type != Type::bits && input.type != Type::computed;
        return has_numbers && input.strides[2] == 0 && plan_.axes[2] % kWide == 0;
    }

    const Plan& plan_;
    const Buffer<Step> steps_;
    const Buffer<uint8_t> looked_for_, written_, repeats_;
    int64_t count_ = 0;
};

}  // namespace gqc::GQC_ISA
