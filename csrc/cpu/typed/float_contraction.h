// For each type, the product of the sources' float rows, transposed, with the destinations' rows over its edges.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/pack.h"
#include "cpu/gemm/shape.h"
#include "cpu/gemm/vector.h"
#include "cpu/typed/edges.h"
#include "cpu/typed/multiply_add.h"

namespace gqc::GQC_ISA {

// Edges of one type that a thread takes at a time.
struct TypedPart {
    int64_t type, begin, end;
};

// Parts depend on the edges only, so sums do not depend on the number of threads.
class TypedParts {
  public:
    template <typename Index>
    explicit TypedParts(const TypedEdges<Index>& edges)
        : size_(edges.count() / kParts > kLeast ? edges.count() / kParts : kLeast),
          parts_(edges.types + edges.count() / size_ + 1) {
        for (int64_t t = 0; parts_.ok() && t < edges.types; ++t)
            for (int64_t p = edges.starts[t]; p < edges.starts[t + 1]; p += size_)
                parts_[count_++] = {t, p, edges.starts[t + 1] - p < size_ ? edges.starts[t + 1] : p + size_};
    }

    bool ok() const { return parts_.ok(); }
    int64_t count() const { return count_; }
    const TypedPart& operator[](int64_t i) const { return parts_[i]; }

  private:
    static constexpr int64_t kLeast = 16384, kParts = 256;
    int64_t size_, count_ = 0;
    Buffer<TypedPart> parts_;
};

// A thread's sums of outer products of rows of m and of n floats.
class OuterProducts {
  public:
    OuterProducts(int64_t m, int64_t n)
        : m_(m),
          n_(n),
          m_packed_(round_up(m, kRows)),
          n_packed_(round_up(n, kLanes)),
          left_(kEdges * m_packed_),
          right_(kEdges * n_packed_),
          sums_(m_packed_ * n_packed_) {
        if (!ok()) return;
        left_.clear();
        right_.clear();
    }

    bool ok() const { return left_.ok() && right_.ok() && sums_.ok(); }

    // out[m, n] = the sum over the edges of a part of u[src]' . grad[dst], times their weight where they have one.
    template <typename Index>
    void run(const TypedEdges<Index>& edges, const TypedPart& part, const float* u, const float* grad,
             const float* weights, float* out) {
        sums_.clear();
        for (int64_t p = part.begin; p < part.end; p += kEdges) {
            const int64_t count = part.end - p < kEdges ? part.end - p : kEdges;
            gather_rows(u, m_, edges.src + p, count, left_.get(), m_packed_);
            gather_rows(grad, n_, edges.dst + p, count, right_.get(), n_packed_);
            if (weights) scale_rows(weights + p, count);
            for (int64_t j0 = 0; j0 < n_; j0 += kColumns) {
                with_vectors(Panel(n_, j0).vectors, [&](auto vectors) {
                    for (int64_t i0 = 0; i0 < m_; i0 += kRows) add_tile<vectors>(i0, j0, count);
                });
            }
        }
        for (int64_t i = 0; i < m_; ++i)
            std::memcpy(out + i * n_, &sums_[i * n_packed_], static_cast<size_t>(n_) * sizeof(float));
    }

  private:
    static constexpr int64_t kEdges = 128;  // whose rows stay in L2

    void scale_rows(const float* weights, int64_t count) const {
        for (int64_t e = 0; e < count; ++e)
            for (int64_t j = 0; j < n_; ++j) right_[e * n_packed_ + j] *= weights[e];
    }

    template <int vectors>
    void add_tile(int64_t i0, int64_t j0, int64_t count) {
        float* to = &sums_[i0 * n_packed_ + j0];
        const float *left = &left_[i0], *right = &right_[j0];
        Floats tile[kRows][vectors];
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) tile[r][v] = load_floats(to + r * n_packed_ + v * kLanes);
        for (int64_t e = 0; e < count; ++e, left += m_packed_, right += n_packed_) {
            Floats columns[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) columns[v] = load_floats(right + v * kLanes);
#pragma GCC unroll 6
            for (int r = 0; r < kRows; ++r) {
                const Floats value = Floats{} + left[r];
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) tile[r][v] = multiply_add(value, columns[v], tile[r][v]);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) store_floats(to + r * n_packed_ + v * kLanes, tile[r][v]);
    }

    int64_t m_, n_, m_packed_, n_packed_;
    Buffer<float> left_, right_, sums_;
};

// out[t] = u' . grad over the edges of type t; u: [sources, m], grad: [destinations, n], out: [types, m, n].
template <typename Index>
Error contract_floats_by_type(int64_t threads, const TypedEdges<Index>& edges, int64_t m, int64_t n, const float* u,
                              const float* grad, const float* weights, float* out) {
    const TypedParts parts(edges);
    if (!parts.ok()) return kOutOfMemory;
    const Buffer<float> sums(parts.count() * m * n);
    if (!sums.ok()) return kOutOfMemory;
    bool ok = true;
#pragma omp parallel num_threads(team(threads, edges.count() * m * n)) reduction(&& : ok)
    {
        OuterProducts products(m, n);
        ok = products.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < parts.count(); ++i)
            if (ok) products.run(edges, parts[i], u, grad, weights, &sums[i * m * n]);
    }
    if (!ok) return kOutOfMemory;
    std::memset(out, 0, static_cast<size_t>(edges.types * m * n) * sizeof *out);
    for (int64_t i = 0; i < parts.count(); ++i) {
        float* __restrict to = out + parts[i].type * m * n;
        const float* __restrict from = &sums[i * m * n];
        for (int64_t j = 0; j < m * n; ++j) to[j] += from[j];
    }
    return nullptr;
}

}  // namespace gqc::GQC_ISA
