// Cross entropy of rows of logits with labels: the loss, and its gradient for all rows of the logits.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/buffer.h"
#include "common/kernel.h"
#include "common/scalar.h"
#include "cpu/graph/rows.h"
#include "cpu/pointwise/math.h"
#include "cpu/stream.h"
#include "cpu/wide.h"
#include "cpu/write.h"

namespace gqc::GQC_ISA {
namespace {

constexpr Error kBadLabel = "a label is neither ignore_index nor the number of a class";
constexpr Error kBadRow = "a row is selected that the logits do not have";
constexpr int64_t kBlock = 128;  // entries whose losses are added up at once, whatever the number of threads

// Values of an argument `reduction`, as torch's.
constexpr int64_t kNone = 0, kMean = 1;

// The rows that have labels: entry e is row index[e], counted from the end where it is negative, or row e without.
struct Selected {
    const int64_t* index;
    const int64_t* labels;
    int64_t count, rows, classes, ignored;

    int64_t row(int64_t e) const { return !index ? e : index[e] < 0 ? index[e] + rows : index[e]; }
    bool is_counted(int64_t e) const { return labels[e] != ignored; }
    bool has_row(int64_t e) const { return row(e) >= 0 && row(e) < rows; }
    bool has_class(int64_t e) const { return labels[e] >= 0 && labels[e] < classes; }
};

// Keeps one of the errors of several threads.
class Refusal {
  public:
    void set(Error error) { __atomic_store_n(&error_, error, __ATOMIC_RELAXED); }
    Error get() const { return error_; }

  private:
    Error error_ = nullptr;
};

inline Floats lane_numbers() {
    Floats x{};
    for (int i = 0; i < kWide; ++i) x[i] = static_cast<float>(i);
    return x;
}

// By halves.
template <int Lanes>
inline float largest_of(Vector<float, Lanes> x) {
    if constexpr (Lanes == 1) {
        return x;
    } else if constexpr (Lanes == 2) {
        return larger<float>(x[0], x[1]);
    } else {
        Vector<float, Lanes / 2> half[2];
        std::memcpy(half, &x, sizeof x);
        return largest_of<Lanes / 2>(larger(half[0], half[1]));
    }
}

template <typename T>
struct Logits {
    const T* data;
    int64_t rows, classes;

    const T* row(int64_t r) const { return data + r * classes; }

    // Brings a row that will be read into the cache.
    void fetch(int64_t r) const {
        if (r >= 0 && r < rows) prefetch(row(r), classes * static_cast<int64_t>(sizeof(T)));
    }

    // Calls f(column, vector) for all vectors of a row; lanes behind its end are -Inf.
    template <typename F>
    void for_vectors(int64_t r, F f) const {
        const T* const from = row(r);
        int64_t c = 0;
        for (; c + kWide <= classes; c += kWide) f(c, load_wide(from + c));
        if (c < classes) f(c, rest(from + c, classes - c));
    }

    float largest(int64_t r) const {
        Floats most = all(-INFINITY);
        for_vectors(r, [&](int64_t, Floats x) { most = larger(x, most); });
        return largest_of<kWide>(most);
    }

  private:
    Floats rest(const T* from, int64_t count) const {
        T copy[kWide] = {};
        if (from + kWide > data + rows * classes) {
            std::memcpy(copy, from, static_cast<size_t>(count) * sizeof(T));
            from = copy;
        }
        return lane_numbers() < static_cast<float>(count) ? load_wide(from) : all(-INFINITY);
    }
};

// losses[i] = the loss of entry first + i, 0 where it is ignored.
template <typename T>
Error block_losses(const Logits<T>& logits, const Selected& selected, int64_t first, int64_t count, float* losses) {
    alignas(64) float sums[kBlock];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t e = first + i;
        if (e + kAhead < selected.count) logits.fetch(selected.row(e + kAhead));
        sums[i] = 1;
        losses[i] = 0;
        if (!selected.is_counted(e)) continue;
        if (!selected.has_class(e)) return kBadLabel;
        if (!selected.has_row(e)) return kBadRow;
        const int64_t row = selected.row(e);
        const float most = logits.largest(row);
        Floats sum{};
        logits.for_vectors(row, [&](int64_t, Floats x) { sum = sum + exp_of_negative<kWide>(x - most); });
        sums[i] = sum_of_lanes<kWide, float>(sum);
        losses[i] = most - load(logits.row(row)[selected.labels[e]]);
    }
    for (int64_t i = count; i < kBlock; ++i) sums[i] = 1, losses[i] = 0;
    for (int64_t i = 0; i < kBlock; i += kWide) put(losses + i, log_of(load_wide(sums + i)) + load_wide(losses + i));
    return nullptr;
}

template <typename T>
Error losses_of(int64_t threads, const Logits<T>& logits, const Selected& selected, int64_t reduction, float* loss,
                float* counted) {
    const int64_t blocks = (selected.count + kBlock - 1) / kBlock;
    const Buffer<double> sums(blocks);
    const Buffer<int64_t> counts(blocks);
    if (!sums.ok() || !counts.ok()) return kOutOfMemory;
    Refusal refusal;
#pragma omp parallel for num_threads(team(threads, selected.count* selected.classes * 4)) schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
        alignas(64) float losses[kBlock];
        const int64_t first = b * kBlock, left = selected.count - first, count = left < kBlock ? left : kBlock;
        if (const Error error = block_losses(logits, selected, first, count, losses)) refusal.set(error);
        sums[b] = 0;
        counts[b] = 0;
        for (int64_t i = 0; i < count; ++i) {
            sums[b] += losses[i];
            counts[b] += selected.is_counted(first + i);
        }
        if (reduction == kNone) std::memcpy(loss + first, losses, static_cast<size_t>(count) * sizeof(float));
    }
    if (refusal.get()) return refusal.get();
    double sum = 0;
    int64_t count = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        sum += sums[b];
        count += counts[b];
    }
    *counted = static_cast<float>(count);
    if (reduction != kNone) *loss = static_cast<float>(reduction == kMean ? sum / static_cast<double>(count) : sum);
    return nullptr;
}

// Entries in the order of their rows; those of one row keep theirs.
class ByRow {
  public:
    explicit ByRow(const Selected& selected)
        : selected_(selected),
          is_sorted_(sorted(selected)),
          starts_(is_sorted_ ? 0 : selected.rows + 1),
          order_(is_sorted_ ? 0 : selected.count) {
        if (is_sorted_ || !ok()) return;
        starts_.clear();
        for (int64_t e = 0; e < selected.count; ++e) ++starts_[selected.row(e) + 1];
        for (int64_t r = 0; r < selected.rows; ++r) starts_[r + 1] += starts_[r];
        for (int64_t e = 0; e < selected.count; ++e) order_[starts_[selected.row(e)]++] = e;
    }

    bool ok() const { return starts_.ok() && order_.ok(); }
    int64_t entry(int64_t place) const { return is_sorted_ ? place : order_[place]; }

    // The first place whose row is not before `row`.
    int64_t first(int64_t row) const {
        if (!selected_.index) return row < selected_.count ? row : selected_.count;
        int64_t low = 0, high = selected_.count;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (selected_.row(entry(middle)) < row)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

  private:
    static bool sorted(const Selected& selected) {
        if (!selected.index) return true;
        bool is_sorted = true;
        for (int64_t e = 1; e < selected.count; ++e) is_sorted &= selected.row(e - 1) <= selected.row(e);
        return is_sorted;
    }

    const Selected& selected_;
    bool is_sorted_;
    Buffer<int64_t> starts_, order_;
};

// The gradients of the entries' losses.
struct Gradients {
    const float* data;
    int64_t step;
    float divisor;

    float at(int64_t e) const { return data[e * step] / divisor; }
};

// Writes the gradient of row `row`, to whose entries those from *place on belong, and moves on to the next row's.
// Up to a vector behind its end is overwritten.
template <typename T>
void row_gradient(const Logits<T>& logits, bool gathered, const Selected& selected, const ByRow& by_row,
                  const Gradients& gradients, int64_t row, int64_t* place, float* out) {
    const int64_t begin = *place;
    int64_t end = begin, read = -1;
    float sum_of_gradients = 0;
    for (; end < selected.count && selected.row(by_row.entry(end)) == row; ++end) {
        const int64_t e = by_row.entry(end);
        if (end + kAhead < selected.count) {
            const int64_t ahead = by_row.entry(end + kAhead);
            logits.fetch(gathered ? ahead : selected.row(ahead));
        }
        if (!selected.is_counted(e)) continue;
        read = gathered ? e : row;
        sum_of_gradients += gradients.at(e);
    }
    *place = end;
    if (read < 0) {
        std::memset(out, 0, static_cast<size_t>(logits.classes) * sizeof(float));
        return;
    }
    const float most = logits.largest(read);
    Floats sum{};
    logits.for_vectors(read, [&](int64_t c, Floats x) {
        const Floats y = exp_of_negative<kWide>(x - most);
        put(out + c, y);
        sum = sum + y;
    });
    const float factor = sum_of_gradients / sum_of_lanes<kWide, float>(sum);
    for (int64_t c = 0; c < logits.classes; c += kWide) put(out + c, load_wide(out + c) * factor);
    for (int64_t p = begin; p < end; ++p) {
        const int64_t e = by_row.entry(p);
        if (selected.is_counted(e)) out[selected.labels[e]] -= gradients.at(e);
    }
}

template <typename T>
Error gradient_of(int64_t threads, const Logits<T>& logits, bool gathered, const Selected& selected,
                  const Gradients& gradients, T* out) {
    constexpr int64_t kBlockValues = 4096;
    const int64_t classes = selected.classes, fitting = kBlockValues / classes, step = fitting < 1 ? 1 : fitting;
    for (int64_t e = 0; e < selected.count; ++e) {
        if (!selected.has_row(e)) return kBadRow;
        if (selected.is_counted(e) && !selected.has_class(e)) return kBadLabel;
    }
    const ByRow by_row(selected);
    if (!by_row.ok()) return kOutOfMemory;
    const int64_t values = selected.rows * classes;
    const bool streamed = std::is_same_v<T, float> && is_streamed(values * static_cast<int64_t>(sizeof(T)));
    Refusal refusal;
#pragma omp parallel num_threads(team(threads, values * 4))
    {
        const Buffer<float> block(step * classes + kWide);
        if (!block.ok()) refusal.set(kOutOfMemory);
#pragma omp for schedule(static)
        for (int64_t first = 0; first < selected.rows; first += step) {
            if (!block.ok()) continue;
            const int64_t last = first + step < selected.rows ? first + step : selected.rows;
            int64_t place = by_row.first(first);
            for (int64_t r = first; r < last; ++r)
                row_gradient(logits, gathered, selected, by_row, gradients, r, &place,
                             block.get() + (r - first) * classes);
            T* const scratch = nullptr;  // nothing is streamed that needs it
            write_all(block.get(), (last - first) * classes, out + first * classes, scratch, streamed);
        }
        end_stream();
    }
    return refusal.get();
}

}  // namespace

// logits [rows, classes]; labels [count]; index: [count] rows that have the labels, or null where count == rows.
// reduction: 0 none, 1 mean, 2 sum. loss: [count] or one number; counted: number of labels that are not ignored.
GQC_KERNEL(cross_entropy)(int64_t threads, const void* logits, int64_t dtype, int64_t rows, int64_t classes,
                          const int64_t* index, const int64_t* labels, int64_t count, int64_t reduction,
                          int64_t ignore_index, float* loss, float* counted) {
    const Selected selected{index, labels, count, rows, classes, ignore_index};
    Error error = nullptr;
    typed(logits, dtype, [&](auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        error = losses_of(threads, Logits<T>{data, rows, classes}, selected, reduction, loss, counted);
    });
    return error;
}

// gradient [rows, classes], 0 in rows without a label; labels of one row add up. grad: of each entry's loss, or one
// number. gathered: logits are those of the entries, [count, classes], else of all rows.
GQC_KERNEL(cross_entropy_backward)(int64_t threads, const float* grad, const void* logits, int64_t dtype, int64_t rows,
                                   int64_t classes, const int64_t* index, const int64_t* labels, int64_t count,
                                   int64_t gathered, int64_t reduction, int64_t ignore_index, const float* counted,
                                   void* gradient) {
    const Selected selected{index, labels, count, rows, classes, ignore_index};
    const Gradients gradients{grad, reduction == kNone, reduction == kMean ? *counted : 1.0f};
    Error error = nullptr;
    typed(logits, dtype, [&](auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        const Logits<T> read{data, gathered ? count : rows, classes};
        error = gradient_of(threads, read, gathered != 0, selected, gradients, static_cast<T*>(gradient));
    });
    return error;
}

}  // namespace gqc::GQC_ISA
