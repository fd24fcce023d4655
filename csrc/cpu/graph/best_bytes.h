// The best of rows of int8, with a byte each for the best value and for where in the row it stands.
#pragma once

#include "cpu/graph/best.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

template <typename Order, typename Index>
class BestBytes {
    static constexpr int64_t kRows = 256;  // which a byte can number
    static constexpr int kTile = 4;

  public:
    static constexpr int64_t kLeastWidth = 16;

    BestBytes(Rows<Index> rows, Operand<int8_t, Index> operand, int64_t width)
        : operand_(operand), width_(width), last_(rows.entries() - 1), ahead_(entries_ahead(width)) {}

    // Of entries begin .. end, one at least: the best values, and their positions behind entry `row`.
    void operator()(int64_t row, int64_t begin, int64_t end, int32_t* values, int32_t* positions) const {
        for (int64_t p = begin; p < end; p += kRows) {
            const Part part{p, p + kRows < end ? p + kRows : end, static_cast<int32_t>(p - row), p == begin};
            vectors<kWidest * 4>(part, values, positions);
        }
    }

  private:
    struct Part {
        int64_t begin, end;
        int32_t position;  // of its first entry
        bool is_first;
    };

    // In vectors of `Bytes`, or shorter ones if the row is.
    template <int Bytes>
    void vectors(const Part& part, int32_t* values, int32_t* positions) const {
        if constexpr (Bytes > kLeastWidth) {
            if (width_ < Bytes) return vectors<Bytes / 2>(part, values, positions);
        }
        tiles<Bytes, kTile>(part, 0, values, positions);
    }

    // The last vector of a row is moved back so that it ends with the row.
    template <int Bytes, int Size>
    void tiles(const Part& part, int64_t vector, int32_t* values, int32_t* positions) const {
        const int64_t vectors = (width_ + Bytes - 1) / Bytes;
        for (; vectors - vector >= Size; vector += Size) {
            int64_t at[Size];
            for (int k = 0; k < Size; ++k) {
                const int64_t first = (vector + k) * Bytes;
                at[k] = first + Bytes <= width_ ? first : width_ - Bytes;
            }
            tile<Bytes, Size>(part, at, values, positions);
        }
        if constexpr (Size > 1) tiles<Bytes, Size - 1>(part, vector, values, positions);
    }

    template <int Bytes, int Size>
    void tile(const Part& part, const int64_t* at, int32_t* values, int32_t* positions) const {
        using Lanes = Vector<int8_t, Bytes>;
        Lanes value[Size], position[Size];  // from -128 on, as numbers with a sign are the ones that widen
        const int8_t* const first = operand_.row(part.begin, width_);
        for (int k = 0; k < Size; ++k) {
            std::memcpy(&value[k], first + at[k], sizeof value[k]);
            position[k] = Lanes{} + static_cast<int8_t>(-kRows / 2);
        }
        for (int64_t p = part.begin + 1; p < part.end; ++p) {
            const Lanes here = Lanes{} + static_cast<int8_t>(p - part.begin - kRows / 2);
            const int8_t* const from = operand_.row(p, width_);
            const int8_t* const next = operand_.row(p + ahead_ < last_ ? p + ahead_ : last_, width_);
#pragma GCC unroll 4
            for (int k = 0; k < Size; ++k) {
                if (k % vectors_per_line<int8_t>(Bytes) == 0) __builtin_prefetch(next + at[k]);
                Lanes x;
                std::memcpy(&x, from + at[k], sizeof x);
                take_better<Order>(x, here, value[k], position[k]);
            }
        }
        for (int k = 0; k < Size; ++k) put_wide<Bytes>(part, value[k], position[k], values + at[k], positions + at[k]);
    }

    template <int Bytes>
    static void put_wide(const Part& part, const Vector<int8_t, Bytes>& value, const Vector<int8_t, Bytes>& position,
                         int32_t* values, int32_t* positions) {
        int8_t value_bytes[Bytes], position_bytes[Bytes];
        put(value_bytes, value);
        put(position_bytes, position);
        for (int i = 0; i < Bytes; i += kWidest) {
            const auto x = widen<kWidest>(value_bytes + i);
            const auto here = widen<kWidest>(position_bytes + i) + static_cast<int32_t>(kRows / 2 + part.position);
            auto best = x, at = here;
            if (!part.is_first) {
                best = fetch<int32_t, kWidest, 1>(values + i);
                at = fetch<int32_t, kWidest, 1>(positions + i);
                take_better<Order>(x, here, best, at);
            }
            put(values + i, best);
            put(positions + i, at);
        }
    }

    const Operand<int8_t, Index> operand_;
    const int64_t width_, last_, ahead_;
};

}  // namespace gqc::GQC_ISA
