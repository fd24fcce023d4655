// Softmax of edge values over the in-edges of each node, for every head, and its gradient.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/attention_rows.h"
#include "cpu/graph/heads.h"
#include "cpu/graph/split_rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {
namespace {

// Values of edges, [edges, heads], by the rows of a matrix.
template <typename Index>
struct EdgeRows {
    Rows<Index> rows;
    const Index* eids;
    int64_t heads;

    // Values of entries begin .. end, one behind the other.
    template <int Known>
    void gather(const float* values, int64_t begin, int64_t end, float* to) const {
        const int64_t count = Known ? Known : heads;
        for (int64_t p = begin; p < end; ++p) {
            const float* const from = values + static_cast<int64_t>(eids[p]) * count;
            __builtin_prefetch(values + static_cast<int64_t>(eids[ahead(p)]) * count);
            for (int64_t h = 0; h < count; ++h) *to++ = from[h];
        }
    }
    template <int Known>
    void scatter(const float* from, int64_t begin, int64_t end, float* values) const {
        const int64_t count = Known ? Known : heads;
        for (int64_t p = begin; p < end; ++p) {
            float* const to = values + static_cast<int64_t>(eids[p]) * count;
            __builtin_prefetch(values + static_cast<int64_t>(eids[ahead(p)]) * count, 1);
            for (int64_t h = 0; h < count; ++h) to[h] = *from++;
        }
    }

    // The entry whose values are fetched while those of entry p are read or written.
    int64_t ahead(int64_t p) const {
        constexpr int64_t kDistance = 32;
        const int64_t last = rows.entries() - 1;
        return p + kDistance < last ? p + kDistance : last;
    }
};

template <typename Index>
struct Softmax {
    EdgeRows<Index> edges;
    const float* logits;
    float* out;

    // The largest logit and the sum of exponentials of each head, then the exponentials.
    using Partial = float;
    int64_t partial_size() const { return 2 * edges.heads + values_of(kPart, edges.heads); }
};

// A NaN is not seen by the maximum but makes its exponential and so the sum NaN.
template <int Known, typename Index>
class SoftmaxWorker {
  public:
    explicit SoftmaxWorker(const Softmax<Index>& job)
        : job_(job),
          heads_(job.edges.heads),
          values_(values_of(kPart, heads_)),
          statistics_(4 * heads_),
          scratch_(heads_, 2) {}

    bool ok() const { return values_.ok() && statistics_.ok() && scratch_.ok(); }

    void rows(int64_t first, int64_t last) const {
        float* const row = values_.get();
        for (int64_t v = first; v < last; ++v) {
            const int64_t begin = job_.edges.rows.indptr[v], end = job_.edges.rows.indptr[v + 1];
            if (begin == end) continue;
            PerHead<Known> most(scratch_, 0), sum(scratch_, 1);
            job_.edges.template gather<Known>(job_.logits, begin, end, row);
            weigh(row, (end - begin) * heads_, most, sum);
            for_vectors<Known>(scratch_, (end - begin) * heads_,
                               [&](int64_t n, int64_t m, auto) { put(row + n, at(row + n) / sum[m]); });
            job_.edges.template scatter<Known>(row, begin, end, job_.out);
        }
    }

    void part(int64_t, int64_t begin, int64_t end, float* partial) const {
        PerHead<Known> most(scratch_, 0), sum(scratch_, 1);
        job_.edges.template gather<Known>(job_.logits, begin, end, partial + 2 * heads_);
        weigh(partial + 2 * heads_, (end - begin) * heads_, most, sum);
        most.store(partial), sum.store(partial + heads_);
    }

    // Puts what the exponentials of a part are multiplied with where its statistics are.
    void join(int64_t, float* partials, int64_t parts) const {
        float* const most = statistics_.get();
        float* const sum = most + heads_;
        const int64_t size = job_.partial_size();
        std::memcpy(most, partials, static_cast<size_t>(2 * heads_) * sizeof(float));
        for (int64_t part = 1; part < parts; ++part) {
            const float* const added = partials + part * size;
            join_softmax(heads_, most, sum, added, added + heads_, sum + heads_, sum + 2 * heads_);
        }
        for (int64_t part = 0; part < parts; ++part) {
            float* const of_part = partials + part * size;
            for (int64_t h = 0; h < heads_; ++h) of_part[h] = exp_of_negative<1>(of_part[h] - most[h]) / sum[h];
        }
    }

    void finish_part(int64_t begin, int64_t end, float* partial) const {
        PerHead<Known> factor(scratch_, 0);
        factor.set(partial);
        float* const row = partial + 2 * heads_;
        for_vectors<Known>(scratch_, (end - begin) * heads_,
                           [&](int64_t n, int64_t m, auto) { put(row + n, at(row + n) * factor[m]); });
        job_.edges.template scatter<Known>(row, begin, end, job_.out);
    }

  private:
    // Turns logits into exp(logit - most), most the largest one of a head, and adds these up.
    __attribute__((always_inline)) void weigh(float* row, int64_t values, PerHead<Known>& most,
                                              PerHead<Known>& sum) const {
        most.fill(kLowest);  // not -Inf: a head whose logits are all -Inf in this part may have others
        for_vectors<Known>(scratch_, values, [&](int64_t n, int64_t m, auto lanes) {
            most.combine(m, lanes.or_else(at(row + n), kLowest), Larger());
        });
        most.reduce(Larger());
        sum.fill(0.0f);
        for_vectors<Known>(scratch_, values, [&](int64_t n, int64_t m, auto lanes) {
            const Floats x = exp_of_negative<kWidest>(at(row + n) - most[m]);
            put(row + n, x);
            sum.combine(m, lanes.or_else(x, 0.0f), Add());
        });
        sum.reduce(Add());
    }

    const Softmax<Index>& job_;
    const int64_t heads_;
    const Buffer<float> values_, statistics_;
    const HeadScratch scratch_;
};

template <typename Index>
struct SoftmaxGradient {
    EdgeRows<Index> edges;
    const float* out;
    const float* grad;
    float* result;

    // The sum of out * grad of each head, then out, then these products.
    using Partial = float;
    int64_t partial_size() const { return edges.heads + 2 * values_of(kPart, edges.heads); }
};

// out * (grad - sum of out * grad).
template <int Known, typename Index>
class SoftmaxGradientWorker {
  public:
    explicit SoftmaxGradientWorker(const SoftmaxGradient<Index>& job)
        : job_(job),
          heads_(job.edges.heads),
          most_values_(values_of(kPart, heads_)),
          values_(2 * most_values_),
          scratch_(heads_, 1) {}

    bool ok() const { return values_.ok() && scratch_.ok(); }

    void rows(int64_t first, int64_t last) const {
        for (int64_t v = first; v < last; ++v) {
            const int64_t begin = job_.edges.rows.indptr[v], end = job_.edges.rows.indptr[v + 1];
            if (begin == end) continue;
            PerHead<Known> sum(scratch_, 0);
            multiply(begin, end, values_.get(), sum);
            subtract(begin, end, values_.get(), sum);
        }
    }

    void part(int64_t, int64_t begin, int64_t end, float* partial) const {
        PerHead<Known> sum(scratch_, 0);
        multiply(begin, end, partial + heads_, sum);
        sum.store(partial);
    }

    void join(int64_t, float* partials, int64_t parts) const {
        const int64_t size = job_.partial_size();
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t h = 0; h < heads_; ++h) partials[h] += partials[part * size + h];
        for (int64_t part = 1; part < parts; ++part)
            std::memcpy(partials + part * size, partials, static_cast<size_t>(heads_) * sizeof(float));
    }

    void finish_part(int64_t begin, int64_t end, float* partial) const {
        PerHead<Known> sum(scratch_, 0);
        sum.set(partial);
        subtract(begin, end, partial + heads_, sum);
    }

  private:
    // values = the softmax, then its products with the gradients, which are added up.
    __attribute__((always_inline)) void multiply(int64_t begin, int64_t end, float* values, PerHead<Known>& sum) const {
        float* const products = values + most_values_;
        job_.edges.template gather<Known>(job_.out, begin, end, values);
        job_.edges.template gather<Known>(job_.grad, begin, end, products);
        sum.fill(0.0f);
        for_vectors<Known>(scratch_, (end - begin) * heads_, [&](int64_t n, int64_t m, auto lanes) {
            const Floats product = at(products + n) * at(values + n);
            put(products + n, product);
            sum.combine(m, lanes.or_else(product, 0.0f), Add());
        });
        sum.reduce(Add());
    }

    __attribute__((always_inline)) void subtract(int64_t begin, int64_t end, float* values,
                                                 const PerHead<Known>& sum) const {
        float* const products = values + most_values_;
        for_vectors<Known>(scratch_, (end - begin) * heads_, [&](int64_t n, int64_t m, auto) {
            put(products + n, at(products + n) - at(values + n) * sum[m]);
        });
        job_.edges.template scatter<Known>(products, begin, end, job_.result);
    }

    const SoftmaxGradient<Index>& job_;
    const int64_t heads_, most_values_;
    const Buffer<float> values_;
    const HeadScratch scratch_;
};

// Elementary steps that a value takes.
constexpr int64_t kSteps = 8;

}  // namespace

// out[e, h] = softmax of logits[e, h] over the edges e = eids[indptr[v]] .. of each row v. The number of edges, not
// used here, is for back ends that cannot read indptr.
GQC_KERNEL(edge_softmax)(int64_t threads, int64_t is_int64, int64_t rows, int64_t, const void* indptr, const void* eids,
                         const float* logits, int64_t heads, float* out) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeRows<Index> edges{{static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), heads};
        const Softmax<Index> job{edges, logits, out};
        return with_heads(heads, [&](auto known) {
            return for_split_rows<SoftmaxWorker<known, Index>>(threads, edges.rows, heads * kSteps, job);
        });
    });
}

// result[e, h] = gradient of the logits, from the softmax `out` and its gradient `grad`.
GQC_KERNEL(edge_softmax_bwd)(int64_t threads, int64_t is_int64, int64_t rows, int64_t, const void* indptr,
                             const void* eids, const float* out, const float* grad, int64_t heads, float* result) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const EdgeRows<Index> edges{{static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), heads};
        const SoftmaxGradient<Index> job{edges, out, grad, result};
        return with_heads(heads, [&](auto known) {
            return for_split_rows<SoftmaxGradientWorker<known, Index>>(threads, edges.rows, heads * kSteps, job);
        });
    });
}

}  // namespace gqc::GQC_ISA
