// For each type, the product of the sources' float rows, transposed, with the destinations' rows over its edges.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/buffer.h"
#include "cpu/gemm/floats/outer_products.h"
#include "cpu/typed/edges.h"

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

// products.sums = the sum over the edges of a part of u[src]' . grad[dst], times their weight where they have one.
template <typename Index>
inline void add_edges(const OuterProducts& products, const TypedEdges<Index>& edges, const TypedPart& part, int64_t m,
                      int64_t n, const float* u, const float* grad, const float* weights) {
    products.clear();
    for (int64_t p = part.begin; p < part.end; p += OuterProducts::kMost) {
        const int64_t count = part.end - p < OuterProducts::kMost ? part.end - p : OuterProducts::kMost;
        gather_rows(u, m, edges.src + p, count, products.left(0), products.left(1) - products.left(0));
        gather_rows(grad, n, edges.dst + p, count, products.right(0), products.right(1) - products.right(0));
        for (int64_t e = 0; weights && e < count; ++e)
            for (int64_t j = 0; j < n; ++j) products.right(e)[j] *= weights[p + e];
        products.add(products.left_rows(), products.right_rows(), count, [] {});
    }
}

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
        const OuterProducts products(m, n);
        ok = products.ok();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < parts.count(); ++i)
            if (ok) {
                add_edges(products, edges, parts[i], m, n, u, grad, weights);
                for (int64_t r = 0; r < m; ++r)
                    std::memcpy(&sums[i * m * n + r * n], products.sums(r), static_cast<size_t>(n) * sizeof(float));
            }
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
