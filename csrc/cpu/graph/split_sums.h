// Sums of rows, of which the longest are shared out to threads in parts.
#pragma once

#include "common/buffer.h"
#include "cpu/graph/row_sums.h"
#include "cpu/graph/rows.h"

namespace gqc::GQC_ISA {

// Entries of a part; longer rows are split, whatever the number of threads, on which no sum depends then. Sums of so
// many products of int8 are exact in int32.
constexpr int64_t kSplit = 8192;

// An element of the sums of a part, int32 or float.
union Partial {
    int32_t exact;
    float rounded;
};

inline int64_t of(Partial x, int32_t) {
    return x.exact;
}
inline float of(Partial x, float) {
    return x.rounded;
}

// to[i] = the sum of element i of the parts, in order, times `scale`.
template <typename Sum>
void join_parts(const Partial* parts, int64_t count, int64_t width, float scale, float* to) {
    for (int64_t i = 0; i < width; ++i) {
        decltype(of(Partial(), Sum())) total = 0;
        for (int64_t part = 0; part < count; ++part) total += of(parts[part * width + i], Sum());
        to[i] = static_cast<float>(total) * scale;
    }
}

// What adds up rows, or parts of them, known by addresses as RowSums is:
//   sums(first, last, to)           the sums of rows of at most kSplit entries, one row behind the other
//   sums.part(begin, end, to)       what join() reads: the sums of entries begin .. end, at most kSplit
//   sums.join(parts, count, to)     the sums of a row, of which `count` parts stand one behind the other
class PartSums {
  public:
    template <typename Sums>
    explicit PartSums(const Sums& sums)
        : rows(sums),
          sums_(&sums),
          part_([](const void* sums, int64_t begin, int64_t end, Partial* to) {
              static_cast<const Sums*>(sums)->part(begin, end, to);
          }),
          join_([](const void* sums, const Partial* parts, int64_t count, float* to) {
              static_cast<const Sums*>(sums)->join(parts, count, to);
          }) {}

    void part(int64_t begin, int64_t end, Partial* to) const { part_(sums_, begin, end, to); }
    void join(const Partial* parts, int64_t count, float* to) const { join_(sums_, parts, count, to); }

    const RowSums rows;

  private:
    const void* const sums_;
    void (*const part_)(const void*, int64_t, int64_t, Partial*);
    void (*const join_)(const void*, const Partial*, int64_t, float*);
};

// All rows of a matrix, of which those with more entries than kSplit are added up here, by all threads together.
template <typename Index>
class SplitSums {
  public:
    SplitSums(int64_t threads, Rows<Index> rows, const PartSums& sums, int64_t width)
        : rows_(rows), sums_(sums), width_(width), count_(count_long()), long_(count_ + 1), values_(count_ * width) {
        if (count_) ok_ = long_.ok() && values_.ok() && add_up(threads);
    }

    bool ok() const { return ok_; }

    void operator()(int64_t first, int64_t last, float* to) const {
        if (count_ == 0) return sums_.rows(first, last, to);
        for (int64_t v = first, next; v < last; v = next) {
            const int64_t i = next_long(v);
            next = i < count_ && long_[i].row < last ? long_[i].row : last;
            sums_.rows(v, next, to);
            to += (next - v) * width_;
            if (next == last) return;
            std::memcpy(to, &values_[i * width_], static_cast<size_t>(width_) * sizeof(float));
            to += width_;
            ++next;
        }
    }

  private:
    struct Long {
        int64_t row, first_part;
    };

    int64_t entries(int64_t v) const { return rows_.indptr[v + 1] - rows_.indptr[v]; }
    int64_t parts_of(int64_t v) const { return (entries(v) + kSplit - 1) / kSplit; }

    int64_t count_long() const {
        int64_t count = 0;
        for (int64_t v = 0; v < rows_.count; ++v) count += entries(v) > kSplit;
        return count;
    }

    // The first long row from v on.
    int64_t next_long(int64_t v) const {
        int64_t low = 0, high = count_;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (long_[middle].row < v)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    bool add_up(int64_t threads) const {
        int64_t parts = 0;
        for (int64_t v = 0, i = 0; i < count_; ++v) {
            if (entries(v) <= kSplit) continue;
            long_[i++] = {v, parts};
            parts += parts_of(v);
        }
        const Buffer<Partial> partials(parts * width_);
        const Buffer<int32_t> row_of(parts);
        if (!partials.ok() || !row_of.ok()) return false;
        for (int64_t i = 0; i < count_; ++i)
            for (int64_t part = 0; part < parts_of(long_[i].row); ++part)
                row_of[long_[i].first_part + part] = static_cast<int32_t>(i);
#pragma omp parallel num_threads(team(threads, parts * kSplit * width_))
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t part = 0; part < parts; ++part) {
                const Long& row = long_[row_of[part]];
                const int64_t begin = rows_.indptr[row.row] + (part - row.first_part) * kSplit;
                const int64_t row_end = rows_.indptr[row.row + 1];
                sums_.part(begin, begin + kSplit < row_end ? begin + kSplit : row_end, &partials[part * width_]);
            }
#pragma omp for schedule(static)
            for (int64_t i = 0; i < count_; ++i)
                sums_.join(&partials[long_[i].first_part * width_], parts_of(long_[i].row), &values_[i * width_]);
        }
        return true;
    }

    const Rows<Index> rows_;
    const PartSums& sums_;
    const int64_t width_, count_;
    const Buffer<Long> long_;
    const Buffer<float> values_;
    bool ok_ = true;
};

}  // namespace gqc::GQC_ISA
