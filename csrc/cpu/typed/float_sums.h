// Sums of float products over the in-edges of destinations.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/floats/multiply_add.h"
#include "cpu/gemm/floats/stack.h"
#include "cpu/graph/compressed.h"
#include "cpu/typed/edges.h"

namespace gqc::GQC_ISA {

template <typename Index>
struct FloatJob {
    using Partial = float;

    TypedEdges<Index> edges;
    Rows<Index> rows;      // the in-edges of destinations
    Shape shape;           // m: destinations
    const float* u;        // [sources, k]
    const float* weights;  // of edges, or null
    const FloatStack& b;
    float* out;  // [m, n]
};

template <typename Index>
class FloatSums {
    using Job = FloatJob<Index>;

  public:
    static constexpr int64_t kEdges = 8 * kRows;

    FloatSums(const Job& job, int64_t destinations)
        : job_(job), width_(round_up(job.shape.n, kLanes)), rows_(kEdges * job.shape.k), sums_(destinations * width_) {
        if (rows_.ok()) rows_.clear();
    }

    bool ok() const { return rows_.ok() && sums_.ok(); }

    void start(int64_t v0, int64_t v1) {
        first_ = v0;
        count_ = v1 - v0;
        std::memset(sums_.get(), 0, static_cast<size_t>(count_ * width_) * sizeof(float));
    }

    void add(int64_t type, int64_t edge, int64_t count) {
        gather_rows(job_.u, job_.shape.k, job_.edges.src + edge, count, rows_.get(), job_.shape.k);
        for (int64_t j0 = 0; j0 < job_.shape.n; j0 += kColumns) {
            const float* right = job_.b.panel(type, j0);
            with_vectors(Panel(job_.shape.n, j0).vectors, [&](auto vectors) {
                for (int64_t r = 0; r < count; r += kRows)
                    add_tile<vectors>(r, right, j0, edge + r, count - r < kRows ? count - r : kRows);
            });
        }
    }

    void finish() {
        for (int64_t r = 0; r < count_; ++r)
            std::memcpy(job_.out + (first_ + r) * job_.shape.n, &sums_[r * width_],
                        static_cast<size_t>(job_.shape.n) * sizeof(float));
    }

    void save(float* partial) const {
        std::memcpy(partial, sums_.get(), static_cast<size_t>(job_.shape.n) * sizeof(float));
    }

    void add_saved(const float* partial) {
        for (int64_t i = 0; i < job_.shape.n; ++i) sums_[i] += partial[i];
    }

    uint32_t largest() const { return 0; }

  private:
    template <int vectors>
    void add_tile(int64_t row, const float* right, int64_t j0, int64_t edge, int64_t count) {
        const int64_t k = job_.shape.k;
        const float* left[kRows];
        for (int r = 0; r < kRows; ++r) left[r] = &rows_[(row + r) * k];
        Floats tile[kRows][vectors] = {};
        add_products<vectors>(left, right, k, tile, [] {});
        for (int64_t r = 0; r < count; ++r) {
            const float weight = job_.weights ? job_.weights[edge + r] : 1.0f;
            float* to = &sums_[(job_.edges.dst[edge + r] - first_) * width_ + j0];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v)
                store_floats(to + v * kLanes, load_floats(to + v * kLanes) + tile[r][v] * weight);
        }
    }

    const Job& job_;
    int64_t width_;  // of a row of sums
    Buffer<float> rows_;
    Buffer<float> sums_;
    int64_t first_ = 0, count_ = 0;
};

}  // namespace gqc::GQC_ISA
