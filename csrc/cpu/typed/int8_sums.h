// Sums of int8 products over the in-edges of destinations: exact, or in float where edges have weights.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/block.h"
#include "cpu/gemm/output.h"
#include "cpu/gemm/values.h"
#include "cpu/graph/compressed.h"
#include "cpu/graph/long_rows.h"
#include "cpu/typed/edges.h"
#include "cpu/typed/packed_stack.h"

namespace gqc::GQC_ISA {

template <typename Index>
struct Int8Job {
    // An element of the sums of some edges, float where edges have weights.
    union Partial {
        int64_t exact;
        float rounded;
    };

    TypedEdges<Index> edges;
    Rows<Index> rows;  // the in-edges of destinations
    Shape shape;       // m: destinations
    const int8_t* u;   // [sources, k]
    const PackedStack& b;
    const float* weights;  // of edges, or null
    float scale;
    FloatOutput output;
};

template <typename Index>
class Int8Sums {
    using Job = Int8Job<Index>;
    using Partial = typename Job::Partial;

  public:
    static constexpr int64_t kEdges = (47 / kStripRows + 1) * kStripRows;  // what one product takes

    Int8Sums(const Job& job, int64_t destinations)
        : job_(job),
          width_(round_up(job.shape.n, kLanes)),
          rows_(kEdges * job.shape.k),
          sums_(destinations * width_),
          wide_(destinations * width_),
          block_(kEdges, job.shape.k),
          worker_(job.output, destinations) {
        if (rows_.ok()) rows_.clear();
    }

    bool ok() const { return rows_.ok() && sums_.ok() && wide_.ok() && block_.ok() && worker_.ok(); }

    void start(int64_t v0, int64_t v1) {
        first_ = v0;
        count_ = v1 - v0;
        in_sums_ = 0;
        std::memset(sums_.get(), 0, static_cast<size_t>(count_ * width_) * sizeof(uint32_t));
        int64_t most = 0;
        for (int64_t v = v0; v < v1; ++v) {
            const int64_t degree = job_.rows.indptr[v + 1] - job_.rows.indptr[v];
            most = degree > most ? degree : most;
        }
        has_hub_ = !job_.weights && (most > kSplit || most * job_.shape.k > kExactProducts);
        if (has_hub_) std::memset(wide_.get(), 0, static_cast<size_t>(count_ * width_) * sizeof(int64_t));
    }

    void add(int64_t type, int64_t edge, int64_t count) {
        if (has_hub_ && (in_sums_ + count) * job_.shape.k > kExactProducts) empty();
        in_sums_ += count;
        gather_rows(job_.u, job_.shape.k, job_.edges.src + edge, count, rows_.get(), job_.shape.k);
        block_.load(rows_.get(), whole_tiles(count));
        for (int64_t j0 = 0; j0 < job_.shape.n; j0 += kColumns) {
            with_vectors(Panel(job_.shape.n, j0).vectors, [&](auto vectors) {
                for (int64_t r = 0; r < count; r += kStripRows) {
                    const int64_t rows = count - r < kStripRows ? count - r : kStripRows;
                    block_.template multiply<vectors>(job_.b[type], j0, r, rows, strip_[0], kColumns);
                    if (job_.weights)
                        add_weighted<vectors>(edge + r, rows, j0);
                    else
                        add_strip<vectors>(edge + r, rows, j0);
                }
            });
        }
    }

    void finish() {
        if (has_hub_) empty();
        for (int64_t j0 = 0; j0 < job_.shape.n; j0 += kColumns) {
            const Panel panel(job_.shape.n, j0);
            with_vectors(panel.vectors, [&](auto vectors) { write_panel<vectors>(j0, panel.columns); });
        }
        worker_.complete(first_, count_);
    }

    void save(Partial* partial) {
        if (has_hub_) empty();
        for (int64_t i = 0; i < job_.shape.n; ++i) {
            if (has_hub_)
                partial[i].exact = wide_[i];
            else
                std::memcpy(&partial[i].rounded, &sums_[i], sizeof(float));
        }
    }

    void add_saved(const Partial* partial) {
        for (int64_t i = 0; i < job_.shape.n; ++i) {
            if (has_hub_)
                wide_[i] += partial[i].exact;
            else
                add_float(partial[i].rounded, &sums_[i]);
        }
    }

    uint32_t largest() const { return largest_.over_lanes(); }

  private:
#if defined(__AMX_INT8__)
    static int64_t whole_tiles(int64_t count) { return round_up(count, kTileRows); }
#else
    static int64_t whole_tiles(int64_t count) { return count; }
#endif

    template <int vectors>
    void add_strip(int64_t edge, int64_t count, int64_t j0) {
        for (int64_t r = 0; r < count; ++r) {
            uint32_t* to = &sums_[(job_.edges.dst[edge + r] - first_) * width_ + j0];
            const uint32_t* from = strip_[r];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                const Sums sum = load_sums(to + v * kLanes) + load_sums(from + v * kLanes);
                std::memcpy(to + v * kLanes, &sum, sizeof sum);
            }
        }
    }

    template <int vectors>
    void add_weighted(int64_t edge, int64_t count, int64_t j0) {
        for (int64_t r = 0; r < count; ++r) {
            const float weight = job_.weights[edge + r];
            uint32_t* to = &sums_[(job_.edges.dst[edge + r] - first_) * width_ + j0];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                const Ints product = (Ints)load_sums(strip_[r] + v * kLanes);
                const Floats weighted = __builtin_convertvector(product, Floats) * weight;
                const Sums sum = (Sums)((Floats)load_sums(to + v * kLanes) + weighted);
                std::memcpy(to + v * kLanes, &sum, sizeof sum);
            }
        }
    }

    static void add_float(float x, uint32_t* to) {
        float sum;
        std::memcpy(&sum, to, sizeof sum);
        sum += x;
        std::memcpy(to, &sum, sizeof sum);
    }

    void empty() {
        in_sums_ = 0;
        for (int64_t i = 0; i < count_ * width_; ++i) wide_[i] += static_cast<int32_t>(sums_[i]);
        std::memset(sums_.get(), 0, static_cast<size_t>(count_ * width_) * sizeof(uint32_t));
    }

    Floats sum_of(int64_t r, int64_t j) const {
        if (!has_hub_) {
            const Sums sum = load_sums(&sums_[r * width_ + j]);
            return job_.weights ? (Floats)sum : __builtin_convertvector((Ints)sum, Floats);
        }
        float values[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) values[lane] = static_cast<float>(wide_[r * width_ + j + lane]);
        return load_floats(values);
    }

    template <int vectors>
    void write_panel(int64_t j0, int64_t columns) {
        finish_panel<true, true, vectors>({first_, count_, j0, columns}, {job_.scale, nullptr, nullptr, false},
                                          job_.shape.n, worker_.values() + j0, &largest_,
                                          [&](int64_t r, int v) { return sum_of(r, j0 + v * kLanes); });
    }

    const Job& job_;
    int64_t width_;  // of a row of sums
    Buffer<int8_t> rows_;
    Buffer<uint32_t> sums_;  // int32, or float where edges have weights
    Buffer<int64_t> wide_;
    LeftBlock block_;
    alignas(64) uint32_t strip_[kStripRows][kColumns];
    FloatOutput::Worker worker_;
    Largest largest_;
    int64_t first_ = 0, count_ = 0, in_sums_ = 0;
    bool has_hub_ = false;
};

}  // namespace gqc::GQC_ISA
