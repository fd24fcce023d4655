// The operation of a message: op(lhs, rhs) on vectors of features.
#pragma once

#include "common/kernel.h"

namespace gqc::GQC_ISA {

// Numbered as OP_CODES of runtime/ops/feature_layout.py.
enum OpCode : int64_t { kCopy = 0, kAdd = 1, kSub = 2, kMul = 3, kDiv = 4, kDot = 5, kCopyFloat24 = 6 };

constexpr const char* kUnknownOp = "unknown operation";

struct Copy {
    static constexpr bool kReadsRhs = false;
    template <typename V>
    static V apply(V a, V) {
        return a;
    }
};
struct Add {
    static constexpr bool kReadsRhs = true;
    template <typename V>
    static V apply(V a, V b) {
        return a + b;
    }
};
struct Mul {
    static constexpr bool kReadsRhs = true;
    template <typename V>
    static V apply(V a, V b) {
        return a * b;
    }
};
struct Div {
    static constexpr bool kReadsRhs = true;
    template <typename V>
    static V apply(V a, V b) {
        return a / b;
    }
};

}  // namespace gqc::GQC_ISA
