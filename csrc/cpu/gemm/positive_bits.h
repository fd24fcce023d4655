// Which elements of a matrix are positive, one bit each.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/gemm/vector.h"

namespace gqc::GQC_ISA {

// Bit i is set where value i is not <= 0, so also where it is NaN; kLanes values.
inline uint32_t positive_lanes(const float* values) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(values), _mm512_setzero_ps(), _CMP_NLE_UQ);
#elif defined(__AVX2__)
    const __m256 positive = _mm256_cmp_ps(_mm256_loadu_ps(values), _mm256_setzero_ps(), _CMP_NLE_UQ);
    return static_cast<uint32_t>(_mm256_movemask_ps(positive));
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(!(values[lane] <= 0)) << lane;
    return bits;
#endif
}

// A row takes whole bytes.
struct PositiveBits {
    uint8_t* bits;  // [m, (n + 7) / 8], or null
    int64_t n;

    // values: `count` rows from row i0 on.
    void write(const float* values, int64_t i0, int64_t count) const {
        const int64_t row_bytes = (n + 7) / 8;
        uint8_t* const to = bits + i0 * row_bytes;
        if (n % 8 == 0) return write_run(values, count * n, to);
        for (int64_t r = 0; r < count; ++r) write_run(values + r * n, n, to + r * row_bytes);
    }

  private:
    static constexpr int kStep = kLanes < 8 ? 8 : kLanes;

    static void write_run(const float* values, int64_t count, uint8_t* to) {
        int64_t i = 0;
        for (; i + kStep <= count; i += kStep) {
            uint32_t positive = 0;
            for (int lane = 0; lane < kStep; lane += kLanes) positive |= positive_lanes(values + i + lane) << lane;
            std::memcpy(to + i / 8, &positive, kStep / 8);
        }
        for (; i < count; i += 8) {
            uint32_t positive = 0;
            for (int64_t j = i; j < i + 8 && j < count; ++j)
                positive |= static_cast<uint32_t>(!(values[j] <= 0)) << (j - i);
            to[i / 8] = static_cast<uint8_t>(positive);
        }
    }
};

}  // namespace gqc::GQC_ISA
