// Sums of rows of bfloat16 without weights: two elements at a time, as they lie side by side in 32 bits.
#pragma once

#include "cpu/graph/rows.h"
#include "cpu/graph/split_sums.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// As SumRows<Copy, bfloat16, ...>, bit for bit. In 32 bits the odd element is a float32 but for the low half, and the
// even one is when it is shifted there: no element is widened by itself, and each vector is loaded once.
template <typename Index>
class SumHalves {
    static constexpr int kElements = 2 * kWidest;
    static constexpr int kTile = 4;
    using Floats = Vector<float, kWidest>;
    using Bits = Vector<uint32_t, kWidest>;

  public:
    static constexpr int64_t kLeastWidth = kElements;

    SumHalves(Rows<Index> rows, Operand<bfloat16, Index> operand, int64_t width)
        : rows_(rows),
          operand_(operand),
          width_(width),
          ahead_(entries_ahead(width * static_cast<int64_t>(sizeof(bfloat16)))),
          whole_lines_(width * sizeof(bfloat16) % 64 == 0) {}

    // Writes the sums of rows first .. last, each of at most kSplit entries, one row behind the other.
    void operator()(int64_t first, int64_t last, float* to) const {
        for (int64_t v = first; v < last; ++v, to += width_) row<kTile>(rows_.indptr[v], rows_.indptr[v + 1], 0, to);
    }

    // As in SumRows.
    void part(int64_t begin, int64_t end, Partial* to) const {
        row<kTile>(begin, end, 0, reinterpret_cast<float*>(to));
    }
    void join(const Partial* parts, int64_t count, float* to) const {
        join_parts<float>(parts, count, width_, 1.0f, to);
    }

  private:
    // Entries begin .. end; the last vector of a row is moved back so that it ends with the row.
    template <int Size>
    void row(int64_t begin, int64_t end, int64_t vector, float* to) const {
        const int64_t vectors = (width_ + kElements - 1) / kElements;
        for (; vectors - vector >= Size; vector += Size) tile<Size>(begin, end, vector, to);
        if constexpr (Size > 1) row<Size - 1>(begin, end, vector, to);
    }

    template <int Size>
    void tile(int64_t begin, int64_t end, int64_t vector, float* to) const {
        int64_t at[Size];
        for (int k = 0; k < Size; ++k) {
            const int64_t first = (vector + k) * kElements;
            at[k] = first + kElements <= width_ ? first : width_ - kElements;
        }
        Floats even[Size] = {}, odd[Size] = {};
        add<Size>(begin, end, at, even, odd);
        for (int k = 0; k < Size; ++k) put_interleaved<kWidest>(to + at[k], even[k], odd[k]);
    }

    template <int Size>
    __attribute__((always_inline)) void add(int64_t begin, int64_t end, const int64_t* at, Floats* even,
                                            Floats* odd) const {
        const int64_t last = rows_.entries() - 1;
        for (int64_t p = begin; p < end; ++p) {
            const bfloat16* const x = operand_.row(p, width_);
            const bfloat16* const next = operand_.row(p + ahead_ < last ? p + ahead_ : last, width_);
            if (!whole_lines_) __builtin_prefetch(next + at[Size - 1] + kElements - 1);
#pragma GCC unroll 4
            for (int k = 0; k < Size; ++k) {
                if (k % vectors_per_line<float>(kWidest) == 0) __builtin_prefetch(next + at[k]);
                Bits pairs;
                std::memcpy(&pairs, x + at[k], sizeof pairs);
                even[k] += (Floats)(pairs << 16);
                odd[k] += (Floats)(pairs & 0xffff0000u);
            }
        }
    }

    const Rows<Index> rows_;
    const Operand<bfloat16, Index> operand_;
    const int64_t width_, ahead_;
    const bool whole_lines_;
};

}  // namespace gqc::GQC_ISA
