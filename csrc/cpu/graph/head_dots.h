// Dot products, head by head, of one row of features with others.
#pragma once

#include <type_traits>

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"
#include "cpu/graph/vnni_dots.h"

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
    using OfFixed = A;
    using OfOthers = B;

    HeadDots(int64_t heads, int64_t width)
        : heads_(heads),
          width_(width),
          unit_(unit_for(width)),
          units_(unit_ ? (width + unit_ - 1) / unit_ : 0),
          copy_(heads * stride()) {}

    bool ok() const { return copy_.ok(); }

    // Takes the row that stays, which must not go away.
    void fix(const A* row) {
        if constexpr (std::is_same_v<A, Fixed>) {
            if (stride() == width_) {
                fixed_ = row;
                return;
            }
        }
        const int64_t whole = stride() - unit_, again = stride() - width_;
        for (int64_t h = 0; h < heads_; ++h) {
            Fixed* const to = copy_.get() + h * stride();
            const A* const from = row + h * width_;
            for (int64_t i = 0; i < whole; ++i) to[i] = static_cast<Fixed>(from[i]);
            for (int64_t i = 0; i < unit_; ++i)
                to[whole + i] = i < again ? Fixed{} : static_cast<Fixed>(from[width_ - unit_ + i]);
        }
        fixed_ = copy_.get();
    }

    // dots[(p - begin) * heads + h] = scale * <fixed row, x[rows[p]]> in head h, p = begin .. end; rows are fetched
    // into the cache, none behind rows[last]. See dots_of for what may be written behind.
    template <typename Index>
    void dot(const B* x, const Index* rows, int64_t begin, int64_t end, int64_t last, float scale, float* dots) const {
        const int64_t row = heads_ * width_, bytes = row * static_cast<int64_t>(sizeof(B));
        const int64_t distance = entries_ahead(bytes);
        const auto for_rows = [&](const auto& body) {
            for (int64_t p = begin; p < end; ++p, dots += heads_) {
                const int64_t ahead = p + distance < last ? p + distance : last;
                const char* const next = reinterpret_cast<const char*>(x + static_cast<int64_t>(rows[ahead]) * row);
                for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i);
                if (bytes % 64) __builtin_prefetch(next + bytes - 1);
                body(x + static_cast<int64_t>(rows[p]) * row, dots);
            }
        };
#if defined(__AVX2__)
        if constexpr (kExact) {
            if (unit_ == 32) return for_rows([&](const B* at, float* to) { products<32>(at, scale, to); });
            if (unit_ == 16) return for_rows([&](const B* at, float* to) { products<16>(at, scale, to); });
        }
#endif
        if constexpr (!kExact) {
            if (unit_)
                return with_lanes(unit_, [&](auto lanes) {
                    for_rows([&](const B* at, float* to) {
                        for (int64_t h = 0; h < heads_; ++h) to[h] = scale * in_units<lanes>(at + h * width_, h);
                    });
                });
        }
        for_rows([&](const B* at, float* to) {
            for (int64_t h = 0; h < heads_; ++h) to[h] = scale * one_by_one(at + h * width_, h);
        });
    }

  private:
    static int unit_for(int64_t width) {
        for (int unit = kExact ? 32 : kWidest; unit >= kSmallest; unit /= 2) {
            if (unit <= width) return unit;
        }
        return 0;
    }

    // Values of a head in the copy of the fixed row.
    int64_t stride() const { return unit_ ? units_ * unit_ : width_; }

    // The dot product of head h.
    float one_by_one(const B* x, int64_t h) const {
        std::conditional_t<kExact, int32_t, float> sum = 0;
        for (int64_t i = 0; i < width_; ++i) sum += fixed_[h * width_ + i] * x[i];
        return static_cast<float>(sum);
    }

    // Likewise where heads are cut into units.
    template <int Unit>
    float in_units(const B* x, int64_t h) const {
        const Fixed* const fixed = fixed_ + h * units_ * Unit;
        Vector<float, Unit> sum{};
        for (int64_t k = 0; k < units_; ++k) {
            const auto at = fetch<float, Unit, 1>(x + first<Unit>(k));
            sum = multiply_add<Unit>(at, fetch<float, Unit, 1>(fixed + k * Unit), sum);
        }
        return sum_of_lanes<Unit, float>(sum);
    }

    // Where a unit of a head starts.
    template <int Unit>
    int64_t first(int64_t k) const {
        return (k + 1) * Unit <= width_ ? k * Unit : width_ - Unit;
    }

#if defined(__AVX2__)
    // The dot products of all heads, four at a time.
    template <int Unit>
    void products(const int8_t* x, float scale, float* dots) const {
        int64_t h = 0;
        for (; h + 4 <= heads_; h += 4) {
            const __m128i sums =
                four(lanes<Unit>(x, h), lanes<Unit>(x, h + 1), lanes<Unit>(x, h + 2), lanes<Unit>(x, h + 3));
            _mm_storeu_ps(dots + h, _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(scale)));
        }
        for (; h < heads_; ++h) {
            const __m256i sum = lanes<Unit>(x, h);
            dots[h] = static_cast<float>(_mm_cvtsi128_si32(four(sum, sum, sum, sum))) * scale;
        }
    }

    static __m128i four(__m256i a, __m256i b, __m256i c, __m256i d) {
        const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    }

    // The products of head h, added up to 8 lanes.
    template <int Unit>
    __m256i lanes(const int8_t* row, int64_t h) const {
        const int8_t* const x = row + h * width_;
        const int8_t* const fixed = fixed_ + h * units_ * Unit;
        // |fixed| * (x with the sign of fixed): one factor is a byte without a sign.
        if constexpr (Unit >= 32) {
            __m256i sum = _mm256_setzero_si256();
            for (int64_t k = 0; k < units_; ++k) {
                const __m256i a = load256(fixed + k * 32), b = load256(x + first<32>(k));
                sum = add_products(sum, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
            }
            return sum;
        } else {
            __m128i sum = _mm_setzero_si128();
            for (int64_t k = 0; k < units_; ++k) {
                const __m128i a = load128(fixed + k * 16), b = load128(x + first<16>(k));
                sum = add_products(sum, _mm_abs_epi8(a), _mm_sign_epi8(b, a));
            }
            return _mm256_zextsi128_si256(sum);
        }
    }

    // sum + the products of bytes without a sign and with one, four a lane.
#    if defined(__AVXVNNI__)
    static __m256i add_products(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
    static __m128i add_products(__m128i sum, __m128i a, __m128i b) { return _mm_dpbusd_avx_epi32(sum, a, b); }
#    else
    // The sum of two products fits int16, since -128 never appears.
    static __m256i add_products(__m256i sum, __m256i a, __m256i b) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
    }
    static __m128i add_products(__m128i sum, __m128i a, __m128i b) {
        return _mm_add_epi32(sum, _mm_madd_epi16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1)));
    }
#    endif

    static __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
    static __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
#endif

    const int64_t heads_, width_;
    const int unit_;  // 0: heads are narrower than the smallest one
    const int64_t units_;
    const Fixed* fixed_ = nullptr;
    const Buffer<Fixed> copy_;
};

#if defined(__AVX512VNNI__)
template <>
class HeadDots<int8_t, int8_t> : public VnniDots {
  public:
    using OfFixed = int8_t;
    using OfOthers = int8_t;
    using VnniDots::VnniDots;
};
#endif

}  // namespace gqc::GQC_ISA
