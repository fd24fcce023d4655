// Dot products, head by head, of one row of features with others.
#pragma once

#include <type_traits>

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// The row that stays, of `heads` runs of `width` values of A, against rows of B. int8 against int8 is added up in
// int32, everything else in float.
//
// A head is cut into units, of which the last is moved back so that it ends with the head; the fixed row's copy has
// zeros there for what the unit before has. Heads narrower than the smallest unit are added up one by one.
template <typename A, typename B>
class HeadDots {
    static constexpr bool kExact = std::is_same_v<A, int8_t> && std::is_same_v<B, int8_t>;
#if defined(__AVX2__)
    static constexpr int kSmallest = kExact ? 16 : 4;
#else
    static constexpr int kSmallest = kExact ? 1 << 30 : 4;  // GCC's own vectors of a plain loop are the best there
#endif
    using Fixed = std::conditional_t<kExact, int8_t, float>;

  public:
    HeadDots(int64_t heads, int64_t width)
        : heads_(heads),
          width_(width),
          unit_(unit_for(width)),
          units_(unit_ ? (width + unit_ - 1) / unit_ : 0),
          fixed_(heads * (unit_ ? units_ * unit_ : width)),
          excess_(heads + 3) {}

    bool ok() const { return fixed_.ok() && excess_.ok(); }

    // Takes the row that stays.
    void fix(const A* row) const {
        const int64_t stride = unit_ ? units_ * unit_ : width_, again = unit_ ? stride - width_ : 0;
        for (int64_t h = 0; h < heads_; ++h) {
            Fixed* const to = fixed_.get() + h * stride;
            const A* const from = row + h * width_;
            const int64_t whole = unit_ ? (units_ - 1) * unit_ : width_;
            for (int64_t i = 0; i < whole; ++i) to[i] = static_cast<Fixed>(from[i]);
            if (unit_) {
                for (int64_t i = 0; i < unit_; ++i)
                    to[whole + i] = i < again ? Fixed{} : static_cast<Fixed>(from[width_ - unit_ + i]);
            }
        }
        if constexpr (kExact) {
            for (int64_t h = 0; h < heads_; ++h) {
                int32_t sum = 0;
                for (int64_t i = 0; i < stride; ++i) sum += fixed_[h * stride + i];
                excess_[h] = 128 * sum;
            }
            for (int64_t h = 0; h < 3; ++h) excess_[heads_ + h] = excess_[h % heads_];
        }
    }

    // dots[(p - begin) * heads + h] = scale * <fixed row, x[rows[p]]> in head h, p = begin .. end; rows are fetched
    // into the cache, none behind rows[last].
    template <typename Index>
    void dot(const B* x, const Index* rows, int64_t begin, int64_t end, int64_t last, float scale, float* dots) const {
        const int64_t row = heads_ * width_;
        int64_t h = 0, p = begin;
        const int64_t count = (end - begin) * heads_;
        const B* at = x + static_cast<int64_t>(rows[begin]) * row;
        const auto next = [&] {
            if (++h < heads_) return;
            h = 0;
            if (++p >= end) return;
            at = x + static_cast<int64_t>(rows[p]) * row;
            const int64_t ahead = p + kAhead < last ? p + kAhead : last;
            const char* const line = reinterpret_cast<const char*>(x + static_cast<int64_t>(rows[ahead]) * row);
            for (int64_t i = 0; i < row * static_cast<int64_t>(sizeof(B)); i += 64) __builtin_prefetch(line + i);
        };
        int64_t i = 0;
        if constexpr (kExact) {
#if defined(__AVX2__)
            if (unit_) {
                for (; i + 4 <= count; i += 4) {
                    const int64_t first = h;
                    four(scale, first, dots + i, [&] {
                        const auto lanes = products(at, h);
                        next();
                        return lanes;
                    });
                }
            }
#endif
        }
        for (; i < count; ++i) {
            dots[i] = scale * one(at + h * width_, h);
            next();
        }
    }

  private:
    static int unit_for(int64_t width) {
        for (int unit = kExact ? 64 : kWidest; unit >= kSmallest; unit /= 2) {
            if (unit <= width && (unit < 64 || kWidest == 16)) return unit;
        }
        return 0;
    }

    float one(const B* x, int64_t h) const {
        if constexpr (kExact) {
            const int64_t stride = unit_ ? units_ * unit_ : width_;
            const int8_t* const fixed = fixed_.get() + h * stride;
            const int64_t whole = unit_ ? (units_ - 1) * unit_ : width_;
            int32_t sum = 0;
            for (int64_t i = 0; i < whole; ++i) sum += fixed[i] * x[i];
            for (int64_t i = whole; i < stride; ++i) sum += fixed[i] * x[i - stride + width_];
            return static_cast<float>(sum);
        } else {
            float total = 0.0f;
            if (!unit_) {
                for (int64_t i = 0; i < width_; ++i) total += fixed_[h * width_ + i] * static_cast<float>(x[i]);
                return total;
            }
            with_lanes(unit_, [&](auto lanes) {
                const float* const fixed = fixed_.get() + h * units_ * lanes;
                Vector<float, lanes> sum{};
                for (int64_t k = 0; k < units_; ++k) {
                    const int64_t from = (k + 1) * lanes <= width_ ? k * lanes : width_ - lanes;
                    sum = multiply_add<lanes>(fetch<float, lanes, 1>(x + from),
                                              fetch<float, lanes, 1>(fixed + k * lanes), sum);
                }
                total = sum_of_lanes<lanes, float>(sum);
            });
            return total;
        }
    }

#if defined(__AVX2__)
    // The products of head h, added up to 8 lanes.
    __m256i products(const int8_t* row, int64_t h) const {
        const int8_t* const x = row + h * width_;
        const int8_t* const fixed = fixed_.get() + h * units_ * unit_;
        const auto from = [&](int64_t k) { return x + ((k + 1) * unit_ <= width_ ? k * unit_ : width_ - unit_); };
#    if defined(__AVX512VNNI__)
        if (unit_ == 64) {
            __m512i sum = _mm512_setzero_si512();
            for (int64_t k = 0; k < units_; ++k) {
                const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(from(k)), _mm512_set1_epi8(-128));
                sum = _mm512_dpbusd_epi32(sum, bytes, _mm512_loadu_si512(fixed + k * 64));
            }
            return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        }
        if (unit_ == 32) {
            __m256i sum = _mm256_setzero_si256();
            for (int64_t k = 0; k < units_; ++k) {
                const __m256i bytes = _mm256_xor_si256(load256(from(k)), _mm256_set1_epi8(-128));
                sum = _mm256_dpbusd_epi32(sum, bytes, load256(fixed + k * 32));
            }
            return sum;
        }
        __m128i sum = _mm_setzero_si128();
        for (int64_t k = 0; k < units_; ++k) {
            const __m128i bytes = _mm_xor_si128(load128(from(k)), _mm_set1_epi8(-128));
            sum = _mm_dpbusd_epi32(sum, bytes, load128(fixed + k * 16));
        }
        return _mm256_zextsi128_si256(sum);
#    else
        // |fixed| * (x with the sign of fixed): the sum of two such products fits int16, since -128 never appears.
        if (unit_ == 32) {
            __m256i sum = _mm256_setzero_si256();
            for (int64_t k = 0; k < units_; ++k) {
                const __m256i a = load256(fixed + k * 32);
                const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(load256(from(k)), a));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            return sum;
        }
        __m128i sum = _mm_setzero_si128();
        for (int64_t k = 0; k < units_; ++k) {
            const __m128i a = load128(fixed + k * 16);
            const __m128i pairs = _mm_maddubs_epi16(_mm_abs_epi8(a), _mm_sign_epi8(load128(from(k)), a));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(pairs, _mm_set1_epi16(1)));
        }
        return _mm256_zextsi128_si256(sum);
#    endif
    }

    static __m256i load256(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static __m128i load128(const int8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

    // Four dot products, the first one in head `first`.
    template <typename Products>
    __attribute__((always_inline)) void four(float scale, int64_t first, float* dots, const Products& products) const {
        const __m256i a = products(), b = products(), c = products(), d = products();
        const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
#    if defined(__AVX512VNNI__)
        sums = _mm_sub_epi32(sums, _mm_loadu_si128(reinterpret_cast<const __m128i*>(excess_.get() + first)));
#    else
        (void)first;
#    endif
        _mm_storeu_ps(dots, _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(scale)));
    }
#endif

    const int64_t heads_, width_;
    const int unit_;  // 0: heads are narrower than the smallest one
    const int64_t units_;
    const Buffer<Fixed> fixed_;
    const Buffer<int32_t> excess_;  // what the sums are too large because bytes of x are read as x + 128
};

}  // namespace gqc::GQC_ISA
