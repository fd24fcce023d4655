// Sums of rows of int8 without weights: two at a time in 16 bits, where the elements of 257 rows have room.
#pragma once

#include "cpu/graph/rows.h"
#include "cpu/graph/split_sums.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// As SumRows<Copy, int8_t, ...>, bit for bit. With 128 added an element is a byte without a sign. A vector is read as
// numbers of 16 bits, low + 256 * high: these are added up, modulo 2^16, and so are their high bytes; the sum of the
// low bytes is the first sum without 256 times the second.
template <typename Index>
class SumBytes {
    static constexpr int64_t kRows = 257;  // 257 * 255 < 2^16
    static constexpr int kTile = kWidest == 16 ? 8 : 4;

  public:
    static constexpr int64_t kLeastWidth = 16;

    SumBytes(Rows<Index> rows, Operand<int8_t, Index> operand, int64_t width, float scale)
        : rows_(rows),
          operand_(operand),
          width_(width),
          scale_(scale),
          ahead_(entries_ahead(width)),
          whole_lines_(width % 64 == 0) {}

    // Writes the sums of rows first .. last, each of at most kSplit entries, one row behind the other.
    void operator()(int64_t first, int64_t last, float* to) const {
        with_bytes([&](auto bytes) {
            for (int64_t v = first; v < last; ++v, to += width_)
                row<bytes, kTile>(rows_.indptr[v], rows_.indptr[v + 1], true, 0, to);
        });
    }

    // As in SumRows.
    void part(int64_t begin, int64_t end, Partial* to) const {
        with_bytes([&](auto bytes) { row<bytes, kTile>(begin, end, false, 0, reinterpret_cast<float*>(to)); });
    }
    void join(const Partial* parts, int64_t count, float* to) const {
        join_parts<int32_t>(parts, count, width_, scale_, to);
    }

  private:
    // body(integral_constant<int, bytes of a vector>)
    template <typename Body>
    void with_bytes(const Body& body) const {
        if (kWidest >= 16 && width_ >= 64) return body(std::integral_constant<int, 64>());
        if (kWidest >= 8 && width_ >= 32) return body(std::integral_constant<int, 32>());
        body(std::integral_constant<int, 16>());
    }

    // Entries begin .. end; the last vector of a row is moved back so that it ends with the row. converts: to floats.
    template <int Bytes, int Size>
    void row(int64_t begin, int64_t end, bool converts, int64_t vector, float* to) const {
        const int64_t vectors = (width_ + Bytes - 1) / Bytes;
        for (; vectors - vector >= Size; vector += Size) tile<Bytes, Size>(begin, end, converts, vector, to);
        if constexpr (Size > 1) row<Bytes, (Size > 4 ? 4 : Size - 1)>(begin, end, converts, vector, to);
    }

    template <int Bytes, int Size>
    void tile(int64_t begin, int64_t end, bool converts, int64_t vector, float* to) const {
        int64_t at[Size];
        for (int k = 0; k < Size; ++k) {
            const int64_t first = (vector + k) * Bytes;
            at[k] = first + Bytes <= width_ ? first : width_ - Bytes;
        }
        if (end - begin > kRows || !converts) return long_tile<Bytes, Size>(begin, end, converts, at, to);
        uint16_t sums[Size][Bytes];
        add<Bytes, Size>(begin, end, at, sums);
        for (int k = 0; k < Size; ++k)
            for (int i = 0; i < Bytes; i += kWidest)
                put(to + at[k] + i, to_float<kWidest>(values(sums[k] + i, end - begin)) * scale_);
    }

    template <int Bytes, int Size>
    __attribute__((noinline)) void long_tile(int64_t begin, int64_t end, bool converts, const int64_t* at,
                                             float* to) const {
        uint16_t sums[Size][Bytes];
        int32_t totals[Size][Bytes] = {};
        for (int64_t p = begin; p < end; p += kRows) {
            const int64_t part_end = p + kRows < end ? p + kRows : end;
            add<Bytes, Size>(p, part_end, at, sums);
            for (int k = 0; k < Size; ++k)
                for (int i = 0; i < Bytes; ++i) totals[k][i] += sums[k][i] - static_cast<int32_t>(part_end - p) * 128;
        }
        for (int k = 0; k < Size; ++k)
            if (converts)
                for (int i = 0; i < Bytes; ++i) to[at[k] + i] = static_cast<float>(totals[k][i]) * scale_;
            else
                std::memcpy(to + at[k], totals[k], sizeof totals[k]);
    }

    // What sums of `rows` bytes without signs are of elements.
    static Vector<int32_t, kWidest> values(const uint16_t* sums, int64_t rows) {
        Vector<uint16_t, kWidest> words;
        std::memcpy(&words, sums, sizeof words);
        return __builtin_convertvector(words, Vector<int32_t, kWidest>) - static_cast<int32_t>(rows) * 128;
    }

    // Sums of entries begin .. end, at most kRows.
    template <int Bytes, int Size>
    __attribute__((always_inline)) void add(int64_t begin, int64_t end, const int64_t* at,
                                            uint16_t (*sums)[Bytes]) const {
        constexpr int kWords = Bytes / 2;
        using Words = Vector<uint16_t, kWords>;
        const int64_t last = rows_.entries() - 1;
        const Words signs = Words{} + static_cast<uint16_t>(0x8080);
        Words all[Size] = {}, high[Size] = {};
        for (int64_t p = begin; p < end; ++p) {
            const int8_t* const x = operand_.row(p, width_);
            const int8_t* const next = operand_.row(p + ahead_ < last ? p + ahead_ : last, width_);
            if (!whole_lines_) __builtin_prefetch(next + at[Size - 1] + Bytes - 1);
#pragma GCC unroll 8
            for (int k = 0; k < Size; ++k) {
                if (k % (64 / Bytes) == 0) __builtin_prefetch(next + at[k]);
                Words words;
                std::memcpy(&words, x + at[k], sizeof words);
                words ^= signs;
                all[k] += words;
                high[k] += words >> 8;
            }
        }
        for (int k = 0; k < Size; ++k) put_interleaved<kWords>(sums[k], all[k] - (high[k] << 8), high[k]);
    }

    const Rows<Index> rows_;
    const Operand<int8_t, Index> operand_;
    const int64_t width_;
    const float scale_;
    const int64_t ahead_;
    const bool whole_lines_;
};

}  // namespace gqc::GQC_ISA
