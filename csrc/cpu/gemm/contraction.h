// Product with a small output and a long contraction, as gradients of weights are: threads share the contraction.
#pragma once

#include <omp.h>

#include "common/buffer.h"
#include "cpu/gemm/epilogue.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"

namespace gqc::GQC_ISA {

constexpr int64_t kChunk = 256;     // contracted rows that are packed at a time, so that a panel stays in L1
constexpr int64_t kLeftPanel = 48;  // left rows of a panel: whole register tiles and whole vectors
static_assert(kLeftPanel % kRows == 0 && kChunk % kGroup == 0 && kExactProducts % kChunk == 0);

// One thread's share: packs chunks of both operands and keeps int32 sums of the whole output.
class PartialProduct {
  public:
    explicit PartialProduct(Shape shape)
        : shape_(shape),
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

    bool ok() const { return left_.ok() && right_.ok() && sums_.ok() && excess_.ok(); }

    void add_chunk(Operand left, Operand right, int64_t k0, int64_t k_count) {
        pack(left, right, k0, k_count);
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
    void pack(Operand left, Operand right, int64_t k0, int64_t k_count) {
        for (int64_t k = 0; k < k_count; k += kGroup) {
            const int64_t count = k_count - k < kGroup ? k_count - k : kGroup;
            for (int64_t i0 = 0; i0 < shape_.m; i0 += kLeftPanel) {
                const int64_t rows = shape_.m - i0 < kLeftPanel ? shape_.m - i0 : kLeftPanel;
                pack_group<Left, encode_left>(left, k0 + k, count, i0, rows, &left_[i0 * kChunk + k * kLeftPanel]);
            }
            for (int64_t j0 = 0; j0 < shape_.n; j0 += kColumns) {
                const Panel panel(shape_.n, j0);
                pack_group<Right, encode_right>(right, k0 + k, count, j0, panel.columns,
                                                &right_[j0 * kChunk + k * panel.vectors * kLanes]);
            }
        }
    }

    Shape shape_;
    int64_t m_packed_, n_packed_;
    Buffer<Left> left_;    // a chunk of all rows, a panel after the other
    Buffer<Right> right_;  // a chunk of all columns, a panel after the other
    Buffer<uint32_t> sums_;
    Buffer<uint32_t> excess_;
};

template <typename Out>
Error gemm_by_contraction(int64_t threads, Shape shape, Operand left, Operand right, const Epilogue<Out>& epilogue) {
    const auto [m, n, k] = shape;
    const Buffer<int64_t> wide(m * n);
    if (!wide.ok()) return kOutOfMemory;
    wide.clear();
    const int64_t chunks = round_up(k, kChunk) / kChunk;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, m * n * k, kLeastProducts)) reduction(&& : ok)
    {
        PartialProduct part(shape);
        ok = part.ok();
        const int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
        const int64_t first = chunks * share / shares, last = chunks * (share + 1) / shares;
        for (int64_t c = first; c < last && ok; ++c) {
            const int64_t k0 = c * kChunk;
            part.add_chunk(left, right, k0, k - k0 < kChunk ? k - k0 : kChunk);
            if ((c - first + 1) % (kExactProducts / kChunk) == 0 || c + 1 == last) {
#pragma omp critical(gqc_wide_sums)
                part.empty_into(wide.get());
            }
        }
    }
    if (!ok) return kOutOfMemory;
    Peaks peaks;
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j0 = 0; j0 < n; j0 += kColumns)
            epilogue.write(&wide[i * n + j0], i, j0, Panel(n, j0).columns, peaks);
    epilogue.finish(peaks.largest());
    return nullptr;
}

}  // namespace gqc::GQC_ISA
