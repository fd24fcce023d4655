// CUDA's vector types, with its sizes and alignments.
#pragma once

#include <cstdint>

#define GQC_VECTOR_TYPE(name, T)                                      \
    struct alignas(sizeof(T) * 2) name##2 {                           \
        T x, y;                                                       \
    };                                                                \
    struct name##3 {                                                  \
        T x, y, z;                                                    \
    };                                                                \
    struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) name##4 { \
        T x, y, z, w;                                                 \
    };                                                                \
    inline name##2 make_##name##2(T x, T y) {                         \
        return {x, y};                                                \
    }                                                                 \
    inline name##3 make_##name##3(T x, T y, T z) {                    \
        return {x, y, z};                                             \
    }                                                                 \
    inline name##4 make_##name##4(T x, T y, T z, T w) {               \
        return {x, y, z, w};                                          \
    }

GQC_VECTOR_TYPE(char, signed char)
GQC_VECTOR_TYPE(uchar, unsigned char)
GQC_VECTOR_TYPE(short, short)
GQC_VECTOR_TYPE(ushort, unsigned short)
GQC_VECTOR_TYPE(int, int)
GQC_VECTOR_TYPE(uint, unsigned)
GQC_VECTOR_TYPE(longlong, long long)
GQC_VECTOR_TYPE(ulonglong, unsigned long long)
GQC_VECTOR_TYPE(float, float)
GQC_VECTOR_TYPE(double, double)

#undef GQC_VECTOR_TYPE

struct dim3 {
    unsigned x, y, z;
};
