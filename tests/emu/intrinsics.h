// CUDA's functions of one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace emu {

template <typename To, typename From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// Rounded already; as a GPU converts: clamped, NaN to 0.
template <typename Int>
Int to_int(float x) {
    if (std::isnan(x)) return 0;
    if (x <= static_cast<float>(std::numeric_limits<Int>::min())) return std::numeric_limits<Int>::min();
    if (x >= static_cast<float>(std::numeric_limits<Int>::max())) return std::numeric_limits<Int>::max();
    return static_cast<Int>(x);
}

// IEEE 754 binary16, and to the nearest of it, ties to even; a NaN becomes the GPU's.
inline float float_of_half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude =
        std::ldexp(static_cast<float>(exponent ? 1024 + fraction : fraction), (exponent ? exponent : 1) - 25);
    if (exponent == 31) magnitude = fraction ? std::numeric_limits<float>::quiet_NaN() : INFINITY;
    return bits & 0x8000 ? -magnitude : magnitude;
}
inline uint16_t half_of_float(float x) {
    if (std::isnan(x)) return 0x7fff;
    const int sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(x));
    if (magnitude >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
    const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
    return static_cast<uint16_t>(
        sign | (static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent))) + ((exponent + 14) << 10)));
}

}  // namespace emu

inline int __float_as_int(float x) {
    return emu::bits_as<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return emu::bits_as<unsigned>(x);
}
inline float __int_as_float(int x) {
    return emu::bits_as<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return emu::bits_as<float>(x);
}

inline float __fadd_rn(float x, float y) {
    return x + y;
}
inline float __fadd_rd(float x, float y) {
    const float sum = x + y;
    return static_cast<double>(sum) > static_cast<double>(x) + y ? std::nextafter(sum, -INFINITY) : sum;
}
inline float __fsub_rn(float x, float y) {
    return x - y;
}
inline float __fmul_rn(float x, float y) {
    return x * y;
}
inline float __fdiv_rn(float x, float y) {
    return x / y;
}
inline float __frcp_rn(float x) {
    return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
    return std::sqrt(x);
}
inline float __fmaf_rn(float x, float y, float z) {
    return std::fma(x, y, z);
}
inline double __dadd_rn(double x, double y) {
    return x + y;
}
inline double __dmul_rn(double x, double y) {
    return x * y;
}

inline int __float2int_rn(float x) {
    return emu::to_int<int>(std::nearbyint(x));
}
inline int __float2int_rd(float x) {
    return emu::to_int<int>(std::floor(x));
}
inline int __float2int_ru(float x) {
    return emu::to_int<int>(std::ceil(x));
}
inline int __float2int_rz(float x) {
    return emu::to_int<int>(std::trunc(x));
}
inline unsigned __float2uint_rn(float x) {
    return emu::to_int<unsigned>(std::nearbyint(x));
}
inline unsigned __float2uint_rz(float x) {
    return emu::to_int<unsigned>(std::trunc(x));
}
inline float __int2float_rn(int x) {
    return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
    return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
    return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
    return static_cast<float>(x);
}

// The fast forms differ from these within their documented error.
inline float __expf(float x) {
    return std::exp(x);
}
inline float __logf(float x) {
    return std::log(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}

inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
inline int __mulhi(int x, int y) {
    return static_cast<int>(static_cast<int64_t>(x) * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

inline int __dp4a(int a, int b, int c) {
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 32; i += 8) sum += static_cast<unsigned>(int8_t(a >> i) * int8_t(b >> i));
    return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}

// Bytes 0-3 are x, 4-7 are y. Bit 3 of a selector spreads the byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
    const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned selector = selectors >> 4 * i & 15;
        unsigned byte = static_cast<unsigned>(bytes >> 8 * (selector & 7)) & 255;
        if (selector & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
    return result;
}

#define GQC_MIN_AND_MAX(T)    \
    inline T min(T x, T y) {  \
        return y < x ? y : x; \
    }                         \
    inline T max(T x, T y) {  \
        return x < y ? y : x; \
    }
GQC_MIN_AND_MAX(int)
GQC_MIN_AND_MAX(unsigned)
GQC_MIN_AND_MAX(long)
GQC_MIN_AND_MAX(unsigned long)
GQC_MIN_AND_MAX(long long)
GQC_MIN_AND_MAX(unsigned long long)
#undef GQC_MIN_AND_MAX
inline float min(float x, float y) {
    return std::fmin(x, y);
}
inline float max(float x, float y) {
    return std::fmax(x, y);
}
