// Sums of rows, of which the longest are shared out to threads in parts.
#pragma once

#include "common/buffer.h"
#include "cpu/graph/long_rows.h"
#include "cpu/graph/row_sums.h"
#include "cpu/graph/rows.h"

namespace gqc::GQC_ISA {

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
        : sums_(sums), width_(width), long_(rows, kSplit), values_(long_.count() * width) {
        ok_ = values_.ok() && !for_long_rows<Worker>(threads, long_, width, Job{sums, width, long_, values_.get()});
    }

    bool ok() const { return ok_; }

    void operator()(int64_t first, int64_t last, float* to) const {
        if (long_.count() == 0) return sums_.rows(first, last, to);
        for (int64_t v = first, next; v < last; v = next) {
            const int64_t i = long_.next(v);
            next = long_.row(i) < last ? long_.row(i) : last;
            sums_.rows(v, next, to);
            to += (next - v) * width_;
            if (next == last) return;
            std::memcpy(to, &values_[i * width_], static_cast<size_t>(width_) * sizeof(float));
            to += width_;
            ++next;
        }
    }

  private:
    struct Job {
        using Partial = GQC_ISA::Partial;
        const PartSums& sums;
        const int64_t width;
        const LongRows<Index>& rows;
        float* values;

        int64_t partial_size() const { return width; }
    };

    struct Worker {
        explicit Worker(const Job& job) : job(job) {}
        bool ok() const { return true; }
        void part(int64_t, int64_t begin, int64_t end, Partial* to) const { job.sums.part(begin, end, to); }
        void join(int64_t v, const Partial* parts, int64_t count) const {
            job.sums.join(parts, count, job.values + job.rows.next(v) * job.width);
        }

        const Job& job;
    };

    const PartSums& sums_;
    const int64_t width_;
    const LongRows<Index> long_;
    const Buffer<float> values_;
    bool ok_ = true;
};

}  // namespace gqc::GQC_ISA
