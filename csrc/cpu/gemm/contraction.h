// Product with a small output and a long contraction, as gradients of weights are: threads share the contraction.
#pragma once

#include <omp.h>

#include "common/buffer.h"
#include "cpu/gemm/block.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/output.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

constexpr int64_t kChunk = 256;     // contracted rows that are packed at a time, so that a panel stays in L1
constexpr int64_t kLeftPanel = 48;  // left rows of a panel: whole register tiles and whole vectors
static_assert(kLeftPanel % kRows == 0 && kChunk % kGroup == 0 && kExactProducts % kChunk == 0);

// A factor, group of kGroup contracted rows by group. Where its lines run along k it is int8.
class Groups {
  public:
    explicit Groups(const Factor& x) : x_(x), lines_(x.matrix, x.k_contiguous ? 0 : kGroup) {}

    bool ok() const { return lines_.ok(); }

    // Rows k .. k + count as an operand that starts at row 0.
    Operand at(int64_t k, int64_t count) const {
        if (x_.k_contiguous) return {x_.matrix.line(0) + k, x_.matrix.width, true};
        return {lines_.read(k, count), x_.matrix.width, false};
    }

  private:
    Factor x_;
    Lines lines_;
};

// One thread's share: packs chunks of both operands and keeps int32 sums of the whole output.
class PartialProduct {
  public:
    PartialProduct(Shape shape, const Factor& left, const Factor& right)
        : shape_(shape),
          left_groups_(left),
          right_groups_(right),
          m_packed_(round_up(shape.m, kLeftPanel)),
          n_packed_(round_up(shape.n, kLanes)),
          left_(m_packed_ * kChunk),
          right_(n_packed_ * kChunk),
          sums_(m_packed_ * n_packed_),
          excess_(n_packed_) {
        if (!ok()) return;
        left_.clear();
        right_.clear();
        sums_.clear();
        excess_.clear();
    }

    bool ok() const {
        return left_groups_.ok() && right_groups_.ok() && left_.ok() && right_.ok() && sums_.ok() && excess_.ok();
    }

    void add_chunk(int64_t k0, int64_t k_count) {
        pack(k0, k_count);
        const int64_t groups = round_up(k_count, kGroup) / kGroup;
        for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
            const int vectors = Panel(shape_.n, j0).vectors;
            const Right* columns = &right_[j0 * kChunk];
            add_excess(vectors, columns, groups, &excess_[j0]);
            for (int64_t i0 = 0; i0 < shape_.m; i0 += kRows) {
                const Left* rows = &left_[i0 / kLeftPanel * kLeftPanel * kChunk + i0 % kLeftPanel * kGroup];
                dot_tile(vectors, {rows, kGroup, kLeftPanel * kGroup}, columns, groups, &sums_[i0 * n_packed_ + j0],
                         n_packed_);
            }
        }
    }

    // Adds the sums to wide[m, n] and starts again from 0.
    void empty_into(int64_t* wide) {
        for (int64_t i = 0; i < shape_.m; ++i)
            for (int64_t j = 0; j < shape_.n; ++j)
                wide[i * shape_.n + j] += static_cast<int32_t>(sums_[i * n_packed_ + j] - excess_[j]);
        sums_.clear();
        excess_.clear();
    }

  private:
    // Group by group, so that wide rows are read as they lie in memory.
    void pack(int64_t k0, int64_t k_count) {
        for (int64_t k = 0; k < k_count; k += kGroup) {
            const int64_t count = k_count - k < kGroup ? k_count - k : kGroup;
            const Operand left = left_groups_.at(k0 + k, count), right = right_groups_.at(k0 + k, count);
            for (int64_t i0 = 0; i0 < shape_.m; i0 += kLeftPanel) {
                const int64_t rows = shape_.m - i0 < kLeftPanel ? shape_.m - i0 : kLeftPanel;
                pack_group<Left, encode_left>(left, 0, count, i0, rows, &left_[i0 * kChunk + k * kLeftPanel]);
            }
            for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
                const Panel panel(shape_.n, j0);
                pack_group<Right, encode_right>(right, 0, count, j0, panel.columns,
                                                &right_[j0 * kChunk + k * panel.vectors * kLanes]);
            }
        }
    }

    Shape shape_;
    Groups left_groups_, right_groups_;
    int64_t m_packed_, n_packed_;
    Buffer<Left> left_;    // a chunk of all rows, a panel after the other
    Buffer<Right> right_;  // a chunk of all columns, a panel after the other
    Buffer<uint32_t> sums_;
    Buffer<uint32_t> excess_;
};

// In int8 as a whole, if its lines run along k: a group of contracted rows is then no run of bytes.
inline Factor unpacked_if_along_k(const Factor& x, const Lines& all) {
    const Matrix& matrix = x.matrix;
    if (!x.k_contiguous || !matrix.packed) return x;
    return {{all.read(0, matrix.lines), matrix.lines, matrix.width, false}, true};
}

// wide[m, n] = left . right.
inline Error contract(int64_t threads, Shape shape, const Factor& left, const Factor& right, int64_t* wide) {
    const auto [m, n, k] = shape;
    const Lines all_left(left.matrix, left.k_contiguous ? left.matrix.lines : 0);
    const Lines all_right(right.matrix, right.k_contiguous ? right.matrix.lines : 0);
    if (!all_left.ok() || !all_right.ok()) return kOutOfMemory;
    const Factor left_read = unpacked_if_along_k(left, all_left), right_read = unpacked_if_along_k(right, all_right);
    std::memset(wide, 0, static_cast<size_t>(m * n) * sizeof *wide);
    const int64_t chunks = round_up(k, kChunk) / kChunk;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, m * n * k, kLeastProducts)) reduction(&& : ok)
    {
        PartialProduct part(shape, left_read, right_read);
        ok = part.ok();
        const int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
        const int64_t first = chunks * share / shares, last = chunks * (share + 1) / shares;
        for (int64_t c = first; c < last && ok; ++c) {
            const int64_t k0 = c * kChunk;
            part.add_chunk(k0, k - k0 < kChunk ? k - k0 : kChunk);
            if ((c - first + 1) % (kExactProducts / kChunk) == 0 || c + 1 == last) {
#pragma omp critical(gqc_wide_sums)
                part.empty_into(wide);
            }
        }
    }
    return ok ? nullptr : kOutOfMemory;
}

template <int vectors, typename Worker>
inline void write_sums_of_row(const int64_t* sums, const Epilogue& epilogue, int64_t i, int64_t j0, int64_t columns,
                              Worker& worker) {
    float values[vectors * kLanes] = {};
    for (int64_t j = 0; j < columns; ++j) values[j] = static_cast<float>(sums[j]);
    Floats y[vectors];
    std::memcpy(&y, values, sizeof y);
    epilogue.apply(y, i, j0);
    write_row(y, i, j0, columns, worker);
}

// Writes the values of exact sums [m, n]. Gives the largest magnitude of what is written.
template <typename Output>
Error write_sums(Shape shape, const int64_t* wide, const Epilogue& epilogue, const Output& output, uint32_t* largest) {
    typename Output::Worker worker(output, kBlockRows);
    if (!worker.ok()) return kOutOfMemory;
    for (int64_t i0 = 0; i0 < shape.m; i0 += kBlockRows) {
        const int64_t count = shape.m - i0 < kBlockRows ? shape.m - i0 : kBlockRows;
        for (int64_t i = i0; i < i0 + count; ++i) {
            for (int64_t j0 = 0; j0 < shape.n; j0 += kColumns) {
                const Panel panel(shape.n, j0);
                with_vectors(panel.vectors, [&](auto vectors) {
                    write_sums_of_row<vectors>(wide + i * shape.n + j0, epilogue, i, j0, panel.columns, worker);
                });
            }
        }
        worker.complete(i0, count);
    }
    *largest = worker.largest();
    return nullptr;
}

}  // namespace gqc::GQC_ISA
