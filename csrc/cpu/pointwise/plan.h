// The numbers that runtime/pointwise/code.py writes: a program for inputs of given types and sizes.
#pragma once

#include <cstdint>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// Numbered as INSTRUCTIONS in runtime/pointwise/program.py.
enum class Op : int64_t {
    add,
    sub,
    mul,
    div,
    minimum,
    maximum,
    neg,
    abs,
    sign,
    relu,
    sqrt,
    rsqrt,
    reciprocal,
    square,
    exp,
    log,
    sigmoid,
    tanh,
    silu,
    gelu,
    gelu_tanh,
    leaky_relu,
    elu,
    threshold_backward,
    leaky_relu_backward,
    elu_backward,
    elu_backward_of_result,
    sigmoid_backward,
    tanh_backward,
    silu_backward,
    gelu_backward,
    gelu_tanh_backward,
    lt,
    le,
    gt,
    ge,
    eq,
    ne,
    logical_and,
    logical_or,
    logical_not,
    where,
    to_bfloat16,
    to_float16,
    keep,
    drop,
};
inline bool is_known(Op op) {
    return op >= Op::add && op <= Op::drop;
}

// INPUT_DTYPES and COMPUTED of runtime/pointwise/code.py. Computed inputs, the first if there are any, have no tensor.
enum class Type : int64_t { float32, bfloat16, float16, boolean, bits, computed };

enum class Form : int64_t { float32, bfloat16, float16, boolean, bits, absmax, int8, float24 };  // DTYPES

// Of an element; less than one for a mask of bits, none for a number.
inline int64_t bytes_of(Form form) {
    constexpr int64_t kBytes[] = {4, 2, 2, 1, 0, 0, 1, 3};
    return kBytes[static_cast<int64_t>(form)];
}

enum class Sum : int64_t { none, first_axis, last_axis };

struct Input {
    Type type;
    int64_t strides[3];  // in elements; 0 along an axis that the input does not have
};

struct Instruction {
    Op op;
    int64_t result;
    int64_t operands[3];
    int64_t parameters[3];
};

struct Result {
    Form form;
    int64_t slot;
    Sum sum;
    int64_t parameters[3];  // of int8: node, bits, stochastic
};

// Slots hold the values of a tile: inputs first, then constants, then what instructions compute.
struct Plan {
    int64_t axes[3];
    int64_t inputs, constants, temporaries, instructions, results;
    const Input* input;
    const int64_t* constant;  // bits of a float
    const Instruction* instruction;
    const Result* result;

    explicit Plan(const int64_t* numbers)
        : axes{numbers[0], numbers[1], numbers[2]},
          inputs(numbers[3]),
          constants(numbers[4]),
          temporaries(numbers[5]),
          instructions(numbers[6]),
          results(numbers[7]) {
        const int64_t* at = numbers + 8;
        input = reinterpret_cast<const Input*>(at);
        at += inputs * static_cast<int64_t>(sizeof(Input) / sizeof(int64_t));
        constant = at;
        at += constants;
        instruction = reinterpret_cast<const Instruction*>(at);
        at += instructions * static_cast<int64_t>(sizeof(Instruction) / sizeof(int64_t));
        result = reinterpret_cast<const Result*>(at);
    }

    int64_t size() const { return axes[0] * axes[1] * axes[2]; }
    int64_t row() const { return axes[1] * axes[2]; }
    int64_t slots() const { return inputs + constants + temporaries; }
    int64_t computed() const {
        int64_t count = 0;
        while (count < inputs && input[count].type == Type::computed) ++count;
        return count;
    }
    bool has(Form form) const {
        for (int64_t i = 0; i < results; ++i)
            if (result[i].form == form) return true;
        return false;
    }
    int64_t count(Sum sum) const {
        int64_t count = 0;
        for (int64_t i = 0; i < results; ++i) count += result[i].sum == sum;
        return count;
    }
};

}  // namespace gqc::GQC_ISA
