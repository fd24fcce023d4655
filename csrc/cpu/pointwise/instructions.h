// One loop over a tile for each instruction.
#pragma once

#include "common/philox.h"
#include "common/scalar.h"
#include "cpu/pointwise/math.h"
#include "cpu/pointwise/plan.h"

namespace gqc::GQC_ISA {

// Values of a tile, a multiple of kWide; a mask is all ones or all zeros in the place of a float.
struct Tile {
    int64_t first, count;  // elements of the iteration
    float** slots;

    int64_t padded() const { return (count + kWide - 1) / kWide * kWide; }
};

// Calls f(at) for the place of each vector of a tile.
template <typename F>
inline void each_vector(const Tile& tile, F f) {
    const int64_t count = tile.padded();
#pragma GCC unroll 4
    for (int64_t at = 0; at < count; at += kWide) f(at);
}

template <typename F>
inline void each(const Instruction& i, const Tile& tile, F f) {
    const float* a = tile.slots[i.operands[0]];
    float* out = tile.slots[i.result];
    each_vector(tile, [=](int64_t at) { put(out + at, f(load_wide(a + at))); });
}
template <typename F>
inline void each_pair(const Instruction& i, const Tile& tile, F f) {
    const float *a = tile.slots[i.operands[0]], *b = tile.slots[i.operands[1]];
    float* out = tile.slots[i.result];
    each_vector(tile, [=](int64_t at) { put(out + at, f(load_wide(a + at), load_wide(b + at))); });
}
template <typename F>
inline void each_scalar(const Instruction& i, const Tile& tile, F f) {
    const float* a = tile.slots[i.operands[0]];
    float* out = tile.slots[i.result];
    for (int64_t at = 0, count = tile.padded(); at < count; ++at) out[at] = f(a[at]);
}

inline Floats mask_of(Ints mask) {
    return as_floats(mask);
}

inline void choose(const Instruction& i, const Tile& tile) {
    const float *mask = tile.slots[i.operands[0]], *a = tile.slots[i.operands[1]], *b = tile.slots[i.operands[2]];
    float* out = tile.slots[i.result];
    each_vector(tile, [=](int64_t at) {
        put(out + at, bits_of(load_wide(mask + at)) != 0 ? load_wide(a + at) : load_wide(b + at));
    });
}

// A dropped NaN or Inf gives NaN, as in torch.
inline void drop(const Instruction& i, const Tile& tile, float scale) {
    each_pair(i, tile, [=](Floats x, Floats kept) { return x * as_floats(bits_of(kept) & bits_of(all(scale))); });
}

inline void keep(const Instruction& i, const Tile& tile, const int64_t* seed) {
    constexpr int64_t kChunk = kBlocks * kBlockElements;
    const Philox stream(seed, i.parameters[1]);
    const uint32_t threshold = static_cast<uint32_t>(i.parameters[0]);
    alignas(64) uint16_t random[kChunk];
    float* out = tile.slots[i.result];
    for (int64_t at = 0; at < tile.padded(); at += kChunk) {
        random_bits(stream, static_cast<uint64_t>((tile.first + at) / kBlockElements), random);
        const int64_t count = tile.padded() - at < kChunk ? tile.padded() - at : kChunk;
        for (int64_t j = 0; j < count; ++j) out[at + j] = float_of(random[j] >= threshold ? ~0u : 0u);
    }
}

inline void execute(const Instruction& i, const Tile& tile, const int64_t* seed) {
    const float p = float_of(static_cast<uint32_t>(i.parameters[0]));
    const float q = float_of(static_cast<uint32_t>(i.parameters[1]));
    const float r = float_of(static_cast<uint32_t>(i.parameters[2]));
    switch (i.op) {
        case Op::add:
            each_pair(i, tile, [](Floats a, Floats b) { return a + b; });
            break;
        case Op::sub:
            each_pair(i, tile, [](Floats a, Floats b) { return a - b; });
            break;
        case Op::mul:
            each_pair(i, tile, [](Floats a, Floats b) { return a * b; });
            break;
        case Op::div:
            each_pair(i, tile, [](Floats a, Floats b) { return a / b; });
            break;
        case Op::minimum:
            each_pair(i, tile, [](Floats a, Floats b) { return a != a ? a : (b > a ? a : b); });
            break;
        case Op::maximum:
            each_pair(i, tile, [](Floats a, Floats b) { return a != a ? a : (b < a ? a : b); });
            break;
        case Op::neg:
            each(i, tile, [](Floats a) { return -a; });
            break;
        case Op::abs:
            each(i, tile, [](Floats a) { return magnitude_of(a); });
            break;
        case Op::sign:
            each(i, tile, [](Floats a) { return a > 0.0f ? all(1.0f) : (a < 0.0f ? all(-1.0f) : Floats{}); });
            break;
        case Op::relu:
            each(i, tile, [](Floats a) { return a < 0.0f ? Floats{} : a; });
            break;
        case Op::sqrt:
            each_scalar(i, tile, [](float a) { return __builtin_sqrtf(a); });
            break;
        case Op::rsqrt:
            each_scalar(i, tile, [](float a) { return 1.0f / __builtin_sqrtf(a); });
            break;
        case Op::reciprocal:
            each(i, tile, [](Floats a) { return 1.0f / a; });
            break;
        case Op::square:
            each(i, tile, [](Floats a) { return a * a; });
            break;
        case Op::exp:
            each(i, tile, exp_of);
            break;
        case Op::log:
            each(i, tile, log_of);
            break;
        case Op::sigmoid:
            each(i, tile, sigmoid_of);
            break;
        case Op::tanh:
            each(i, tile, tanh_of);
            break;
        case Op::silu:
            each(i, tile, [](Floats a) { return a / (1.0f + exp_of(-a)); });
            break;
        case Op::gelu:
            each(i, tile, [](Floats a) { return a * normal_cdf(a); });
            break;
        case Op::gelu_tanh:
            each(i, tile, gelu_tanh_of);
            break;
        case Op::leaky_relu:
            each(i, tile, [p](Floats a) { return a > 0.0f ? a : a * p; });
            break;
        case Op::elu:  // p alpha, q scale, r input scale
            each(i, tile, [=](Floats a) { return a > 0.0f ? a * q : expm1_of(a * r) * (p * q); });
            break;
        case Op::threshold_backward:
            each_pair(i, tile, [p](Floats grad, Floats a) { return a <= p ? Floats{} : grad; });
            break;
        case Op::leaky_relu_backward:
            each_pair(i, tile, [p](Floats grad, Floats a) { return a > 0.0f ? grad : grad * p; });
            break;
        case Op::elu_backward:
            each_pair(i, tile,
                      [=](Floats grad, Floats a) { return a > 0.0f ? grad * q : grad * r * (p * q) * exp_of(a * r); });
            break;
        case Op::elu_backward_of_result:
            each_pair(i, tile, [=](Floats grad, Floats y) { return y > 0.0f ? grad * q : grad * r * (y + p * q); });
            break;
        case Op::sigmoid_backward:
            each_pair(i, tile, [](Floats grad, Floats y) { return grad * (1.0f - y) * y; });
            break;
        case Op::tanh_backward:
            each_pair(i, tile, [](Floats grad, Floats y) { return grad * (1.0f - y * y); });
            break;
        case Op::silu_backward:
            each_pair(i, tile, [](Floats grad, Floats a) {
                const Floats s = sigmoid_of(a);
                return grad * s * (1.0f + a * (1.0f - s));
            });
            break;
        case Op::gelu_backward:
            each_pair(i, tile, gelu_backward_of);
            break;
        case Op::gelu_tanh_backward:
            each_pair(i, tile, gelu_tanh_backward_of);
            break;
        case Op::lt:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a < b); });
            break;
        case Op::le:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a <= b); });
            break;
        case Op::gt:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a > b); });
            break;
        case Op::ge:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a >= b); });
            break;
        case Op::eq:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a == b); });
            break;
        case Op::ne:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(a != b); });
            break;
        case Op::logical_and:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(bits_of(a) & bits_of(b)); });
            break;
        case Op::logical_or:
            each_pair(i, tile, [](Floats a, Floats b) { return mask_of(bits_of(a) | bits_of(b)); });
            break;
        case Op::logical_not:
            each(i, tile, [](Floats a) { return mask_of(~bits_of(a)); });
            break;
        case Op::where:
            choose(i, tile);
            break;
        case Op::to_bfloat16:
            each_scalar(i, tile, [](float a) {
                bfloat16 rounded;
                store(&rounded, a);
                return load(rounded);
            });
            break;
        case Op::to_float16:
            each_scalar(i, tile, [](float a) {
                float16 rounded;
                store(&rounded, a);
                return load(rounded);
            });
            break;
        case Op::keep:
            keep(i, tile, seed);
            break;
        case Op::drop:
            drop(i, tile, p);
            break;
    }
}

}  // namespace gqc::GQC_ISA
