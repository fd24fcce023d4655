// Float product with a small output and a long contraction, as gradients of weights are: threads share the contraction.
#pragma once

#include <omp.h>

#include <cstring>

#include "cpu/gemm/floats/matrix.h"
#include "cpu/gemm/floats/outer_products.h"

namespace gqc::GQC_ISA {

// How the contracted rows are cut: it does not depend on the number of threads, so sums do not either.
struct FloatParts {
    int64_t rows, size;

    FloatParts(int64_t rows, int64_t outputs) : rows(rows) {
        const int64_t fit = kMostSums / (outputs < 1 ? 1 : outputs);
        const int64_t most = fit < kFewest ? kFewest : fit < kMost ? fit : kMost;
        const int64_t fair = round_up((rows + most - 1) / most, OuterProducts::kMost);
        size = fair < kLeastRows ? kLeastRows : fair;
    }
    int64_t count() const { return (rows + size - 1) / size; }

  private:
    static constexpr int64_t kLeastRows = 512, kFewest = 8, kMost = 128, kMostSums = 1 << 23;
};

// A matrix whose rows are read in order, each multiplied by its factor unless there are none.
struct FloatLines : FloatMatrix {
    const float* factors;

    FloatLines(const FloatMatrix& matrix, const float* factors) : FloatMatrix(matrix), factors(factors) {}

    // Whether the rows lie in memory as they are multiplied.
    bool lies() const { return !narrow && !factors; }
    FloatRows rows_from(int64_t i) const { return {row(i), width}; }

    void load(int64_t i, float* __restrict to) const {
        FloatMatrix::load(i, to);
        if (!factors) return;
        for (int64_t j = 0; j < width; ++j) to[j] *= factors[i];
    }
};

constexpr int64_t kInFloats = 512;  // products whose sum is float32

// A thread's sums of outer products of rows of m and of n floats, in float32.
class FloatPart {
  public:
    FloatPart(int64_t m, int64_t n) : products_(m, n) {}

    bool ok() const { return products_.ok(); }

    // Whether it computes b' . a in the place of a' . b, [m, n], as that takes less time.
    static bool swaps(int64_t m, int64_t n) { return OuterProducts::cycles(n, m) < OuterProducts::cycles(m, n); }

    // total[left.width, right.width] += the sum of the outer products of rows first .. end.
    void add(const FloatLines& left, const FloatLines& right, int64_t first, int64_t end, double* total) const {
        constexpr int64_t kMost = OuterProducts::kMost;
        int64_t in_floats = 0;
        for (int64_t row = first; row < end; row += kMost) {
            const int64_t count = end - row < kMost ? end - row : kMost, behind = end - row - count;
            const bool left_lies = left.lies() && behind * left.width >= OuterProducts::kBehindLeft;
            const bool right_lies = right.lies() && behind * right.width >= OuterProducts::kBehindRight;
            for (int64_t e = 0; e < count && !left_lies; ++e) left.load(row + e, products_.left(e));
            for (int64_t e = 0; e < count && !right_lies; ++e) right.load(row + e, products_.right(e));
            const FloatRows left_rows = left_lies ? left.rows_from(row) : products_.left_rows();
            const FloatRows right_rows = right_lies ? right.rows_from(row) : products_.right_rows();
            const int64_t next = behind < kMost ? behind : kMost;
            Ahead left_ahead(left, row + count, next, products_.steps());
            Ahead right_ahead(right, row + count, next, products_.steps());
            products_.add(left_rows, right_rows, count, [&] {
                left_ahead.ask();
                right_ahead.ask();
            });
            in_floats += count;
            if (in_floats < kInFloats && behind > 0) continue;
            for (int64_t i = 0; i < left.width; ++i)
                for (int64_t j = 0; j < right.width; ++j) total[i * right.width + j] += products_.sums(i)[j];
            products_.clear();
            in_floats = 0;
        }
    }

  private:
    OuterProducts products_;
};

// out[m, n] = a' . b for a: [rows, m], b: [rows, n].
template <typename Part>
Error contract_floats(int64_t threads, int64_t rows, const FloatLines& a, const FloatLines& b, float* out) {
    const int64_t m = a.width, n = b.width;
    const bool swapped = Part::swaps(m, n);
    const FloatLines &left = swapped ? b : a, &right = swapped ? a : b;
    const int64_t i_stride = swapped ? 1 : n, j_stride = swapped ? m : 1;
    const FloatParts parts(rows, m * n);
    const Buffer<double> sums(parts.count() * m * n);
    if (!sums.ok()) return kOutOfMemory;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, m * n * rows, kLeastProducts)) reduction(&& : ok)
    {
        Part part(left.width, right.width);
        ok = part.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = 0; p < parts.count(); ++p) {
            const int64_t first = p * parts.size, end = rows - first < parts.size ? rows : first + parts.size;
            double* const total = &sums[p * m * n];
            std::memset(total, 0, static_cast<size_t>(m * n) * sizeof *total);
            if (ok) part.add(left, right, first, end, total);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                double value = 0;
                for (int64_t p = 0; p < parts.count(); ++p) value += sums[p * m * n + i * i_stride + j * j_stride];
                out[i * n + j] = static_cast<float>(value);
            }
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

}  // namespace gqc::GQC_ISA
