// Functions of a vector, each within a few units in the last place over the whole range of float32. NaN stays NaN.
#pragma once

#include "cpu/wide.h"

namespace gqc::GQC_ISA {

inline Floats all(float x) {
    return broadcast<kWide>(x);
}
inline Ints bits_of(Floats x) {
    return (Ints)x;
}
inline Floats as_floats(Ints bits) {
    return (Floats)bits;
}
inline Floats magnitude_of(Floats x) {
    return as_floats(bits_of(x) & 0x7fffffff);
}
// |x| with the sign of another.
inline Floats with_sign(Floats x, Floats sign) {
    return as_floats((bits_of(x) & 0x7fffffff) | (bits_of(sign) & static_cast<int32_t>(0x80000000u)));
}

template <int Count>
inline Floats polynomial(Floats x, const float (&coefficients)[Count]) {
    Floats y = all(coefficients[Count - 1]);
    for (int i = Count - 2; i >= 0; --i) y = y * x + coefficients[i];
    return y;
}

inline Floats power_of_two(Ints n) {
    return as_floats((n + 127) << 23);
}

// x = n * log(2) + fraction with |fraction| <= log(2) / 2; returns exp(fraction) - 1.
inline Floats exp_of_fraction(Floats x, Ints* n) {
    constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves a rounded integer in the low bits
    constexpr float kTail[] = {5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f,
                               8.3334519073e-3f, 1.3981999507e-3f, 1.9875691500e-4f};
    const Floats shifted = x * 1.44269504f + kToInteger;
    *n = bits_of(shifted) - 0x4b400000;
    const Floats whole = shifted - kToInteger;
    const Floats f = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    return polynomial(f, kTail) * f * f + f;
}

inline Floats exp_of(Floats x) {
    x = x > 89.0f ? all(89.0f) : x;
    x = x < -104.0f ? all(-104.0f) : x;
    Ints n;
    const Floats y = exp_of_fraction(x, &n) + 1.0f;
    const Ints half = n >> 1;  // in two steps, since 2^n itself may be beyond the range
    return y * power_of_two(half) * power_of_two(n - half);
}

// exp(x) - 1, without the loss near 0; for x <= 88.
inline Floats expm1_of(Floats x) {
    x = x < -87.0f ? all(-87.0f) : x;
    Ints n;
    const Floats y = exp_of_fraction(x, &n), scale = power_of_two(n);
    return y * scale + (scale - 1.0f);
}

inline Floats log_of(Floats x) {
    constexpr float kTail[] = {0.3333333432674408f,  -0.24999989569187164f, 0.20000013709068298f, -0.16668015718460083f,
                               0.14286702871322632f, -0.12450676411390305f, 0.11032170802354813f, -0.10639669746160507f,
                               0.10569579899311066f, -0.06269538402557373f};
    const auto tiny = x < 1.17549435e-38f;
    const Floats scaled = tiny ? x * 8388608.0f : x;  // 2^23
    Ints bits = bits_of(scaled);
    Ints exponent = (bits >> 23) - 127 - (tiny ? broadcast<kWide>(23) : Ints{});
    Floats m = as_floats((bits & 0x007fffff) | 0x3f800000);
    const auto above = m > 1.41421356f;
    m = above ? m * 0.5f : m;
    exponent = above ? exponent + 1 : exponent;
    const Floats f = m - 1.0f, e = to_float<kWide>(exponent);
    Floats y = f * f * f * polynomial(f, kTail) + e * -2.12194440e-4f;
    y = y - 0.5f * f * f;
    y = f + y + e * 0.693359375f;
    y = x == 0.0f ? all(-__builtin_inff()) : y;
    y = x < 0.0f ? all(__builtin_nanf("")) : y;
    // Infinity and NaN give themselves.
    return bits_of(x) >= 0x7f800000 ? x : (x != x ? x : y);
}

inline Floats sigmoid_of(Floats x) {
    return 1.0f / (1.0f + exp_of(-x));
}

inline Floats tanh_of(Floats x) {
    constexpr float kTail[] = {-0.3333333432674408f,  0.13333292305469513f,   -0.05395656079053879f,
                               0.021747581660747528f, -0.008276199921965599f, 0.0022184266708791256f};
    const Floats square = x * x;
    const Floats near = x + x * square * polynomial(square, kTail);
    const Floats far = 1.0f - 2.0f / (exp_of(2.0f * magnitude_of(x)) + 1.0f);
    return magnitude_of(x) < 0.625f ? near : with_sign(far, x);
}

inline Floats erf_of(Floats x) {
    constexpr float kNear[] = {1.128379225730896f,      -0.37612637877464294f,  0.11283782869577408f,
                               -0.026865437626838684f,  0.005221053492277861f,  -0.0008484396385028958f,
                               0.00011268253729213029f, -9.673591193859465e-06f};
    constexpr float kLogOfRest[] = {0.0003032129898201674f, -1.1301666498184204f,    -0.6319370865821838f,
                                    -0.10997824370861053f,  0.02636471763253212f,    -0.004740222357213497f,
                                    0.0005927695310674608f, -4.559062290354632e-05f, 1.6140616025950294e-06f};
    const Floats size = magnitude_of(x), t = size > 4.0f ? all(4.0f) : size;
    const Floats near = x * polynomial(x * x, kNear);
    const Floats far = 1.0f - exp_of(polynomial(t, kLogOfRest));
    return size < 1.0f ? near : (x != x ? x : with_sign(far, x));
}

constexpr float kRootHalf = 0.70710678118654752f;

// P(Z <= x) of a standard normal number.
inline Floats normal_cdf(Floats x) {
    return 0.5f * (1.0f + erf_of(x * kRootHalf));
}

inline Floats gelu_backward_of(Floats grad, Floats x) {
    const Floats density = exp_of(x * x * -0.5f) * 0.3989422804014327f;
    return grad * (normal_cdf(x) + x * density);
}

// GELU with tanh: x * (1 + tanh(inner(x))) / 2.
constexpr float kInner = 0.7978845608028654f, kCubic = 0.044715f;

inline Floats gelu_tanh_of(Floats x) {
    return 0.5f * x * (1.0f + tanh_of(kInner * (x + kCubic * x * x * x)));
}

inline Floats gelu_tanh_backward_of(Floats grad, Floats x) {
    const Floats t = tanh_of(kInner * (x + kCubic * x * x * x));
    const Floats slope = kInner * (1.0f + 3.0f * kCubic * x * x);
    return grad * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
}

}  // namespace gqc::GQC_ISA
