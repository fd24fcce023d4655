// Weighted sums of a few rows each, which stand one behind the other or are picked from a table, and their gradients.

#include <cstring>

#include "common/kernel.h"
#include "cpu/graph/rows.h"
#include "cpu/wide.h"

namespace gqc::GQC_ISA {
namespace {

constexpr Error kOutOfRange = "a row number is out of range";

// Row i of a matrix.
struct Following {
    const float* x;
    int64_t width;

    const float* row(int64_t i) const { return x + i * width; }
};

// The row of a table with the i-th number.
template <typename Index>
struct Picked {
    const float* x;
    int64_t width;
    const Index* index;

    const float* row(int64_t i) const { return x + static_cast<int64_t>(index[i]) * width; }
};

template <typename Index>
bool is_in_range(const Index* index, int64_t count, int64_t rows) {
    Index least = 0, most = 0;
    for (int64_t i = 0; i < count; ++i) {
        least = index[i] < least ? index[i] : least;
        most = index[i] > most ? index[i] : most;
    }
    return least >= 0 && (count == 0 || static_cast<int64_t>(most) < rows);
}

// `count` groups of `terms` rows, `width` floats each.
struct Groups {
    int64_t count, terms, width;

    int64_t rows() const { return count * terms; }
    int64_t work() const { return rows() * width; }
};

// Columns first .. first + Vectors * kWide of a weighted sum.
template <int Vectors, typename Rows>
inline void add_up(const Rows& rows, const float* weights, int64_t at, int64_t terms, int64_t first, float* out) {
    Floats sums[Vectors] = {};
    for (int64_t k = 0; k < terms; ++k) {
        const float* const row = rows.row(at + k) + first;
        const Floats weight = broadcast<kWide>(weights[k]);
        for (int v = 0; v < Vectors; ++v) sums[v] += weight * load_wide(row + v * kWide);
    }
    for (int v = 0; v < Vectors; ++v) put(out + first + v * kWide, sums[v]);
}

template <typename Rows>
void weighted_sums(int64_t threads, const Groups& groups, const Rows& rows, const float* weights, float* out) {
    const int64_t width = groups.width, terms = groups.terms;
#pragma omp parallel for num_threads(team(threads, groups.work())) schedule(static)
    for (int64_t b = 0; b < groups.count; ++b) {
        const float* const own = weights + b * terms;
        float* const sum = out + b * width;
        int64_t d = 0;
        for (; d + 4 * kWide <= width; d += 4 * kWide) add_up<4>(rows, own, b * terms, terms, d, sum);
        for (; d + kWide <= width; d += kWide) add_up<1>(rows, own, b * terms, terms, d, sum);
        for (; d < width; ++d) {
            float total = 0.0f;
            for (int64_t k = 0; k < terms; ++k) total += own[k] * rows.row(b * terms + k)[d];
            sum[d] = total;
        }
    }
}

inline float dot_of_rows(const float* a, const float* b, int64_t width) {
    Floats sums[2] = {};
    int64_t d = 0;
    for (; d + 2 * kWide <= width; d += 2 * kWide)
        for (int v = 0; v < 2; ++v) sums[v] += load_wide(a + d + v * kWide) * load_wide(b + d + v * kWide);
    if (d + kWide <= width) {
        sums[0] += load_wide(a + d) * load_wide(b + d);
        d += kWide;
    }
    float total = sum_of_lanes<kWide, float>(sums[0] + sums[1]);
    for (; d < width; ++d) total += a[d] * b[d];
    return total;
}

template <typename Index>
void dots(int64_t threads, const Groups& groups, const Picked<Index>& rows, const float* grad, float* out) {
#pragma omp parallel for num_threads(team(threads, groups.work())) schedule(static)
    for (int64_t b = 0; b < groups.count; ++b)
        for (int64_t i = b * groups.terms; i < (b + 1) * groups.terms; ++i)
            out[i] = dot_of_rows(rows.row(i), grad + b * groups.width, groups.width);
}

inline void add_scaled(const float* x, float factor, int64_t width, float* to) {
    const Floats factors = broadcast<kWide>(factor);
    int64_t d = 0;
    for (; d + kWide <= width; d += kWide) put(to + d, load_wide(to + d) + factors * load_wide(x + d));
    for (; d < width; ++d) to[d] += factor * x[d];
}

// Each thread adds to rows of its own, in the order of the index.
template <typename Index>
void scatter(int64_t threads, const Groups& groups, const float* weights, const Index* index, const float* grad,
             int64_t rows, float* out) {
    const int64_t width = groups.width, parts = team(threads, groups.work() + rows * width / 8);
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
        std::memset(out + first * width, 0, sizeof(float) * (end - first) * width);
        for (int64_t b = 0; b < groups.count; ++b)
            for (int64_t i = b * groups.terms; i < (b + 1) * groups.terms; ++i) {
                const auto row = static_cast<int64_t>(index[i]);
                if (row < first || row >= end) continue;
                add_scaled(grad + b * width, weights ? weights[i] : 1.0f, width, out + row * width);
            }
    }
}

}  // namespace

// out[b] = sum over k of weights[b, k] times row b * terms + k of x or, with an index [count, terms], row
// index[b, k] of x, which has `rows` rows.
GQC_KERNEL(weighted_sum)(int64_t threads, const float* weights, const float* x, int64_t is_int64, const void* index,
                         int64_t rows, int64_t count, int64_t terms, int64_t width, float* out) {
    const Groups groups{count, terms, width};
    if (!index) {
        weighted_sums(threads, groups, Following{x, width}, weights, out);
        return nullptr;
    }
    return with_index(is_int64, [&](auto kind) -> Error {
        using Index = decltype(kind);
        const Picked<Index> picked{x, width, static_cast<const Index*>(index)};
        if (!is_in_range(picked.index, groups.rows(), rows)) return kOutOfRange;
        weighted_sums(threads, groups, picked, weights, out);
        return nullptr;
    });
}

// out[b, k] = <table[index[b, k]], grad[b]>
GQC_KERNEL(weighted_sum_bwd_weights)(int64_t threads, const float* table, int64_t is_int64, const void* index,
                                     int64_t rows, int64_t count, int64_t terms, int64_t width, const float* grad,
                                     float* out) {
    return with_index(is_int64, [&](auto kind) -> Error {
        using Index = decltype(kind);
        const Groups groups{count, terms, width};
        const Picked<Index> picked{table, width, static_cast<const Index*>(index)};
        if (!is_in_range(picked.index, groups.rows(), rows)) return kOutOfRange;
        dots(threads, groups, picked, grad, out);
        return nullptr;
    });
}

// out[n] = sum of weights[b, k] * grad[b], or without weights of grad[b], over all b and k with index[b, k] = n
GQC_KERNEL(add_rows)(int64_t threads, const float* weights, int64_t is_int64, const void* index, int64_t rows,
                     int64_t count, int64_t terms, int64_t width, const float* grad, float* out) {
    return with_index(is_int64, [&](auto kind) -> Error {
        using Index = decltype(kind);
        const auto* const numbers = static_cast<const Index*>(index);
        const Groups groups{count, terms, width};
        if (!is_in_range(numbers, groups.rows(), rows)) return kOutOfRange;
        scatter(threads, groups, weights, numbers, grad, rows, out);
        return nullptr;
    });
}

}  // namespace gqc::GQC_ISA
