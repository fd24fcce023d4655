// Memory that is read or written once from end to end.
//
// Stores that go to memory past the caches. A core reads each line before it writes a part of it to a cache; a result
// too large to stay in a cache until it is read costs half as much without.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/intrinsics.h"
#include "common/kernel.h"

namespace gqc::GQC_ISA {

// Bytes of a result from which on it is streamed: where writing and reading it back costs the same either way on a core
// with 2 MB of L2 cache is 8 MB, and twice as much leaves room for larger caches.
constexpr int64_t kStreamedBytes = 16 << 20;

inline bool is_streamed(int64_t bytes) {
    return bytes >= kStreamedBytes;
}

#if defined(__AVX512F__)
constexpr int64_t kStreamedVector = 64;
#elif defined(__AVX2__)
constexpr int64_t kStreamedVector = 32;
#else
constexpr int64_t kStreamedVector = 16;
#endif

// Writes kStreamedVector bytes; `to` is a multiple of them.
inline void stream_vector(const void* from, void* to) {
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
    _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
#elif defined(__SSE2__)
    _mm_stream_si128(static_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
#else
    std::memcpy(to, from, kStreamedVector);
#endif
}

// As memcpy. Lines of which it has only a part are stored as usual.
inline void stream(const void* from, int64_t bytes, void* to) {
    constexpr int64_t kLine = 64;
    const char* source = static_cast<const char*>(from);
    char* target = static_cast<char*>(to);
    const int64_t before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(target) % kLine);
    const int64_t head = before < bytes ? before : bytes, whole = head + (bytes - head) / kLine * kLine;
    std::memcpy(target, source, static_cast<size_t>(head));
    for (int64_t at = head; at < whole; at += kStreamedVector) stream_vector(source + at, target + at);
    std::memcpy(target + whole, source + whole, static_cast<size_t>(bytes - whole));
}

// Asks for memory that will be read some thousand instructions later: the processor looks ahead too, but not while it
// computes, nor past the end of a page.
inline void prefetch(const void* from, int64_t bytes) {
    constexpr int kToSecondLevel = 2;
    const char* const bytes_at = static_cast<const char*>(from);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(bytes_at + at, 0, kToSecondLevel);
    __asm__ volatile("");  // GCC drops calls of functions that it finds to do nothing but prefetch
}

// Each thread that streamed calls it before others read what it wrote.
inline void end_stream() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace gqc::GQC_ISA
