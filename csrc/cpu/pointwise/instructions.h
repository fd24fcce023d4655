// The instructions that work from memory to memory, on a strip at a time.
#pragma once

#include "common/philox.h"
#include "common/scalar.h"
#include "cpu/pointwise/math.h"
#include "cpu/pointwise/steps.h"

namespace gqc::GQC_ISA {

// Values of a tile, a multiple of kStrip; a mask is all ones or all zeros in the place of a float.
struct Tile {
    int64_t first, count;  // elements of the iteration
    float** slots;

    int64_t padded() const { return (count + kStrip - 1) / kStrip * kStrip; }
};

// The strip of a tile from `at` on.
struct Strip {
    const Tile& tile;
    int64_t at;

    float* slot(int64_t i) const { return tile.slots[i] + at; }
};

template <typename F>
inline void each(const Instruction& i, const Strip& strip, F f) {
    const float* a = strip.slot(i.operands[0]);
    float* out = strip.slot(i.result);
    for (int64_t at = 0; at < kStrip; at += kWide) put(out + at, f(load_wide(a + at)));
}
template <typename F>
inline void each_pair(const Instruction& i, const Strip& strip, F f) {
    const float *a = strip.slot(i.operands[0]), *b = strip.slot(i.operands[1]);
    float* out = strip.slot(i.result);
    for (int64_t at = 0; at < kStrip; at += kWide) put(out + at, f(load_wide(a + at), load_wide(b + at)));
}
template <typename F>
inline void each_scalar(const Instruction& i, const Strip& strip, F f) {
    const float* a = strip.slot(i.operands[0]);
    float* out = strip.slot(i.result);
    for (int64_t at = 0; at < kStrip; ++at) out[at] = f(a[at]);
}

inline Floats mask_of(Ints mask) {
    return as_floats(mask);
}

inline void keep(const Instruction& i, const Strip& strip, const int64_t* seed) {
    constexpr int64_t kStripBlocks = kStrip / kBlockElements;
    static_assert(kStrip % kBlockElements == 0 && kStripBlocks % kWords == 0);
    const uint32_t threshold = static_cast<uint32_t>(i.parameters[0]);
    alignas(64) uint16_t random[kStrip];
    random_bits(Philox(seed, i.parameters[1]), static_cast<uint64_t>((strip.tile.first + strip.at) / kBlockElements),
                random, kStripBlocks);
    float* out = strip.slot(i.result);
    for (int64_t j = 0; j < kStrip; ++j) out[j] = float_of(random[j] >= threshold ? ~0u : 0u);
}

inline void execute(const Instruction& i, const Strip& strip, const int64_t* seed) {
    const float p = float_of(static_cast<uint32_t>(i.parameters[0]));
    const float q = float_of(static_cast<uint32_t>(i.parameters[1]));
    const float r = float_of(static_cast<uint32_t>(i.parameters[2]));
    switch (i.op) {
        case Op::sign:
            each(i, strip, [](Floats a) { return a > 0.0f ? all(1.0f) : (a < 0.0f ? all(-1.0f) : Floats{}); });
            break;
        case Op::sqrt:
            each_scalar(i, strip, [](float a) { return __builtin_sqrtf(a); });
            break;
        case Op::rsqrt:
            each_scalar(i, strip, [](float a) { return 1.0f / __builtin_sqrtf(a); });
            break;
        case Op::reciprocal:
            each(i, strip, [](Floats a) { return 1.0f / a; });
            break;
        case Op::exp:
            each(i, strip, exp_of);
            break;
        case Op::log:
            each(i, strip, log_of);
            break;
        case Op::sigmoid:
            each(i, strip, sigmoid_of);
            break;
        case Op::tanh:
            each(i, strip, tanh_of);
            break;
        case Op::silu:
            each(i, strip, [](Floats a) { return a / (1.0f + exp_of(-a)); });
            break;
        case Op::gelu:
            each(i, strip, [](Floats a) { return a * normal_cdf(a); });
            break;
        case Op::gelu_tanh:
            each(i, strip, gelu_tanh_of);
            break;
        case Op::elu:  // p alpha, q scale, r input scale
            each(i, strip, [=](Floats a) { return a > 0.0f ? a * q : expm1_of(a * r) * (p * q); });
            break;
        case Op::elu_backward:
            each_pair(i, strip,
                      [=](Floats grad, Floats a) { return a > 0.0f ? grad * q : grad * r * (p * q) * exp_of(a * r); });
            break;
        case Op::elu_backward_of_result:
            each_pair(i, strip, [=](Floats grad, Floats y) { return y > 0.0f ? grad * q : grad * r * (y + p * q); });
            break;
        case Op::sigmoid_backward:
            each_pair(i, strip, [](Floats grad, Floats y) { return grad * (1.0f - y) * y; });
            break;
        case Op::tanh_backward:
            each_pair(i, strip, [](Floats grad, Floats y) { return grad * (1.0f - y * y); });
            break;
        case Op::silu_backward:
            each_pair(i, strip, [](Floats grad, Floats a) {
                const Floats s = sigmoid_of(a);
                return grad * s * (1.0f + a * (1.0f - s));
            });
            break;
        case Op::gelu_backward:
            each_pair(i, strip, gelu_backward_of);
            break;
        case Op::gelu_tanh_backward:
            each_pair(i, strip, gelu_tanh_backward_of);
            break;
        case Op::to_float16:
            each_scalar(i, strip, [](float a) {
                float16 rounded;
                store(&rounded, a);
                return load(rounded);
            });
            break;
        case Op::keep:
            keep(i, strip, seed);
            break;
        default:  // steps.h
            break;
    }
}

}  // namespace gqc::GQC_ISA
