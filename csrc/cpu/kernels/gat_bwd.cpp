// The gradients of GAT's edge phase, see gat.cpp. Each edge's attention is computed again, in two passes that each
// gather rows of features once: by destination what a softmax's gradient subtracts and the gradient of er, by source
// the gradients of u and el. No sum has more than one writer.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/edge_dropout.h"
#include "cpu/graph/head_dots.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/split_rows.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int kStatistics = 4;  // of a destination and head: er, largest logit, 1 / total, what the gradient subtracts

template <typename U, typename G, typename Index>
struct GatBwd {
    Neighbours<Index> in, out;
    const float* el;
    const float* er;
    const float* largest;
    const float* total;
    const U* u;
    const G* grad;
    float u_scale, grad_scale;
    int64_t heads, width;
    float slope;
    const EdgeDropout& dropout;
    const HeadSums& sums;
    float* statistics;
    float* d_u;
    float* d_el;
    float* d_er;
    int32_t* absmax;
};

// The sums over edges of a * d, a * s and a * d * s, where a is the attention before it is divided by its sum, d its
// gradient and s the slope of the leaky ReLU.
template <typename U, typename G, typename Index>
struct ByDestination {
    const GatBwd<U, G, Index>& of;
    int64_t partial_size() const { return 3 * of.heads; }
};

template <typename U, typename G, typename Index>
class ByDestinationWorker {
  public:
    explicit ByDestinationWorker(const ByDestination<U, G, Index>& job)
        : job_(job.of),
          heads_(job_.heads),
          logits_(values_of(kPart, heads_)),
          gradients_(dots_of(kPart, heads_)),
          kept_(EdgeDropout::size(kPart, heads_) + kWidest),
          partial_(job.partial_size()),
          dots_(heads_, job_.width),
          scratch_(heads_, 5) {}

    bool ok() const {
        return logits_.ok() && gradients_.ok() && kept_.ok() && partial_.ok() && dots_.ok() && scratch_.ok();
    }

    void rows(int64_t first, int64_t last) {
        const Index* const indptr = job_.in.rows.indptr;
        const int64_t loaded = indptr[first];
        load(loaded, indptr[last]);
        for (int64_t v = first; v < last; ++v) multiply_rows(v, loaded, indptr[v], indptr[v + 1]);
        with_heads(heads_, [&](auto known) {
            for (int64_t v = first; v < last; ++v) {
                if (indptr[v] == indptr[v + 1]) {
                    std::memset(job_.d_er + v * heads_, 0, static_cast<size_t>(heads_) * sizeof(float));
                    continue;
                }
                add_up<known>(v, loaded, indptr[v], indptr[v + 1], partial_.get());
                finish(v, partial_.get());
            }
        });
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        load(begin, end);
        multiply_rows(v, begin, begin, end);
        with_heads(heads_, [&](auto known) { add_up<known>(v, begin, begin, end, partial); });
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = 3 * heads_;
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        finish(v, partials);
    }

  private:
    // What entries begin .. end read, but for the features.
    void load(int64_t begin, int64_t end) {
        gather<1>(job_.el, job_.in.indices, begin, end, job_.in.rows.entries() - 1, heads_, {logits_.get()});
        if (job_.dropout.seed) job_.dropout.factors(job_.in.eids + begin, end - begin, heads_, kept_.get());
    }

    // The gradients of the attention of entries begin .. end of row v, before dropout.
    void multiply_rows(int64_t v, int64_t loaded, int64_t begin, int64_t end) {
        if (begin == end) return;
        dots_.fix(job_.grad + v * heads_ * job_.width);
        dots_.dot(job_.u, job_.in.indices, begin, end, job_.in.rows.entries() - 1, job_.u_scale * job_.grad_scale,
                  gradients_.get() + (begin - loaded) * heads_);
    }

    template <int Known>
    void add_up(int64_t v, int64_t loaded, int64_t begin, int64_t end, float* sums) const {
        const int64_t offset = (begin - loaded) * heads_;
        const float* const logits = logits_.get() + offset;
        const float* const gradients = gradients_.get() + offset;
        const float* const kept = kept_.get() + offset;
        PerHead<Known> er(scratch_, 0), largest(scratch_, 1);
        PerHead<Known> products(scratch_, 2), slopes(scratch_, 3), sloped_products(scratch_, 4);
        er.set(job_.er + v * heads_);
        largest.set(job_.largest + v * heads_);
        products.fill(0.0f), slopes.fill(0.0f), sloped_products.fill(0.0f);
        for_vectors<Known>(scratch_, (end - begin) * heads_, [&](int64_t n, int64_t m, auto lanes) {
            const Floats logit = at(logits + n) + er[m];
            const Floats a = lanes.or_else(exp_of_negative<kWidest>(leaky(logit, job_.slope) - largest[m]), 0.0f);
            const Floats gradient = job_.dropout.seed ? at(gradients + n) * at(kept + n) : at(gradients + n);
            const Floats product = lanes.or_else(a * gradient, 0.0f);
            products.combine(m, product, Add());
            slopes.combine(m, leaky_gradient(logit, a, job_.slope), Add());
            sloped_products.combine(m, leaky_gradient(logit, product, job_.slope), Add());
        });
        products.reduce(Add()), slopes.reduce(Add()), sloped_products.reduce(Add());
        products.store(sums), slopes.store(sums + heads_), sloped_products.store(sums + 2 * heads_);
    }

    void finish(int64_t v, const float* sums) const {
        float* const statistics = job_.statistics + v * kStatistics * heads_;
        for (int64_t h = 0; h < heads_; ++h) {
            const float inverse = 1.0f / job_.total[v * heads_ + h], dot = sums[h] * inverse;
            statistics[h] = job_.er[v * heads_ + h];
            statistics[heads_ + h] = job_.largest[v * heads_ + h];
            statistics[2 * heads_ + h] = inverse;
            statistics[3 * heads_ + h] = dot;
            job_.d_er[v * heads_ + h] = (sums[2 * heads_ + h] - dot * sums[heads_ + h]) * inverse;
        }
    }

    const GatBwd<U, G, Index>& job_;
    const int64_t heads_;
    const Buffer<float> logits_, gradients_, kept_, partial_;
    HeadDots<G, U> dots_;
    const HeadScratch scratch_;
};

template <typename U, typename G, typename Index>
struct BySource {
    const GatBwd<U, G, Index>& of;
    // Sums of the gradient of u, then the gradient of el.
    int64_t partial_size() const { return of.sums.size() + of.heads; }
};

template <typename U, typename G, typename Index>
class BySourceWorker {
  public:
    explicit BySourceWorker(const BySource<U, G, Index>& job)
        : job_(job.of),
          heads_(job_.heads),
          stride_(values_of(kPart, heads_)),
          statistics_(kStatistics * stride_),
          gradients_(dots_of(kPart, heads_)),
          weights_(stride_),
          kept_(EdgeDropout::size(kPart, heads_) + kWidest),
          factors_(values_of(1, heads_)),
          dots_(heads_, job_.width),
          scratch_(heads_, 2),
          streamed_(job_.sums.is_streamed(job_.d_u, job_.out.rows.count)) {
        if (factors_.ok())
            for (int64_t h = 0; h < heads_; ++h) factors_[h] = job_.grad_scale;
    }
    ~BySourceWorker() {
        end_stream();
        raise(job_.absmax, seen_.get());
    }

    bool ok() const {
        return statistics_.ok() && gradients_.ok() && weights_.ok() && kept_.ok() && factors_.ok() && dots_.ok() &&
               scratch_.ok();
    }

    void rows(int64_t first, int64_t last) {
        const Index* const indptr = job_.out.rows.indptr;
        const int64_t loaded = indptr[first], row = heads_ * job_.width;
        load(loaded, indptr[last]);
        for (int64_t v = first; v < last; ++v) multiply_rows(v, loaded, indptr[v], indptr[v + 1]);
        with_heads(heads_, [&](auto known) {
            for (int64_t v = first; v < last; ++v)
                weigh<known>(v, loaded, indptr[v], indptr[v + 1], job_.d_el + v * heads_);
        });
        for (int64_t v = first; v < last; ++v) {
            job_.sums.template write<false>(weighted(loaded, indptr[v], indptr[v + 1]), factors_.get(),
                                            job_.d_u + v * row, streamed_, seen_);
        }
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        load(begin, end);
        multiply_rows(v, begin, begin, end);
        with_heads(heads_, [&](auto known) { weigh<known>(v, begin, begin, end, partial + job_.sums.size()); });
        std::memset(partial, 0, static_cast<size_t>(job_.sums.size()) * sizeof(float));
        job_.sums.template add<false>(weighted(begin, begin, end), partial);
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = job_.sums.size() + heads_;
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        job_.sums.write_sums(partials, factors_.get(), job_.d_u + v * heads_ * job_.width, seen_);
        std::memcpy(job_.d_el + v * heads_, partials + job_.sums.size(), static_cast<size_t>(heads_) * sizeof(float));
    }

  private:
    // What entries begin .. end read, but for the features.
    void load(int64_t begin, int64_t end) {
        float* const to = statistics_.get();
        gather<kStatistics>(job_.statistics, job_.out.indices, begin, end, job_.out.rows.entries() - 1, heads_,
                            {to, to + stride_, to + 2 * stride_, to + 3 * stride_});
        if (job_.dropout.seed) job_.dropout.factors(job_.out.eids + begin, end - begin, heads_, kept_.get());
    }

    // The gradients of the attention of entries begin .. end of row v, before dropout.
    void multiply_rows(int64_t v, int64_t loaded, int64_t begin, int64_t end) {
        if (begin == end) return;
        dots_.fix(job_.u + v * heads_ * job_.width);
        dots_.dot(job_.grad, job_.out.indices, begin, end, job_.out.rows.entries() - 1, job_.u_scale * job_.grad_scale,
                  gradients_.get() + (begin - loaded) * heads_);
    }

    // The weights of entries begin .. end of row v in the gradient of u, and the gradient of el.
    template <int Known>
    void weigh(int64_t v, int64_t loaded, int64_t begin, int64_t end, float* d_el) {
        const int64_t offset = (begin - loaded) * heads_;
        const float* const er = statistics_.get() + offset;
        const float* const largest = er + stride_;
        const float* const inverse = largest + stride_;
        const float* const subtracted = inverse + stride_;
        const float* const gradients = gradients_.get() + offset;
        const float* const kept = kept_.get() + offset;
        float* const weights = weights_.get() + offset;
        PerHead<Known> el(scratch_, 0), sum(scratch_, 1);
        el.set(job_.el + v * heads_);
        sum.fill(0.0f);
        for_vectors<Known>(scratch_, (end - begin) * heads_, [&](int64_t n, int64_t m, auto lanes) {
            const Floats logit = el[m] + at(er + n);
            const Floats a = exp_of_negative<kWidest>(leaky(logit, job_.slope) - at(largest + n)) * at(inverse + n);
            Floats gradient = at(gradients + n), weight = a;
            if (job_.dropout.seed) gradient *= at(kept + n), weight *= at(kept + n);
            put(weights + n, weight);
            const Floats of_logit = leaky_gradient(logit, a * (gradient - at(subtracted + n)), job_.slope);
            sum.combine(m, lanes.or_else(of_logit, 0.0f), Add());
        });
        sum.reduce(Add());
        sum.store(d_el);
    }

    WeightedRows<G, Index> weighted(int64_t loaded, int64_t begin, int64_t end) const {
        return {job_.grad,
                job_.out.indices,
                begin,
                end,
                job_.out.rows.entries() - 1,
                weights_.get() + (begin - loaded) * heads_};
    }

    const GatBwd<U, G, Index>& job_;
    const int64_t heads_, stride_;
    const Buffer<float> statistics_, gradients_, weights_, kept_, factors_;
    HeadDots<U, G> dots_;
    const HeadScratch scratch_;
    const bool streamed_;
    LargestSeen seen_;
};

// Calls body with `x` as a pointer to int8 where it has a scale, else to float.
template <typename Body>
Error by_type(const void* x, const float* scale, const Body& body) {
    return scale ? body(static_cast<const int8_t*>(x)) : body(static_cast<const float*>(x));
}

}  // namespace

// As gat, with the relation by destination and by source. grad: gradient of out, [destinations, heads, width], int8
// where it has a scale. statistics: scratch, [destinations, 4, heads]. d_u: [sources, heads, width] with its absmax,
// d_el: [sources, heads], d_er: [destinations, heads].
GQC_KERNEL(gat_bwd)(int64_t threads, int64_t is_int64, int64_t sources, int64_t destinations, int64_t /*edges*/,
                    const void* in_indptr, const void* in_indices, const void* in_eids, const void* out_indptr,
                    const void* out_indices, const void* out_eids, const float* el, const float* er,
                    const float* largest, const float* total, const void* u, const float* u_scale, const void* grad,
                    const float* grad_scale, int64_t heads, int64_t width, float slope, const int64_t* seed,
                    int64_t node, int64_t threshold, float factor, float* statistics, float* d_u, float* absmax,
                    float* d_el, float* d_er) {
    if (width > kExactSums) return "a head is too wide: sums of its products may overflow";
    const EdgeDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
    const HeadSums sums(heads, width);
    if (!sums.ok()) return kOutOfMemory;
    int32_t seen = 0;
    const Error error = with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const auto matrix = [](const void* indptr, int64_t rows, const void* indices, const void* eids) {
            return Neighbours<Index>{{static_cast<const Index*>(indptr), rows},
                                     static_cast<const Index*>(indices),
                                     static_cast<const Index*>(eids)};
        };
        return by_type(u, u_scale, [&](auto* features) {
            return by_type(grad, grad_scale, [&](auto* gradient) {
                using U = std::remove_const_t<std::remove_pointer_t<decltype(features)>>;
                using G = std::remove_const_t<std::remove_pointer_t<decltype(gradient)>>;
                const GatBwd<U, G, Index> job{matrix(in_indptr, destinations, in_indices, in_eids),
                                              matrix(out_indptr, sources, out_indices, out_eids),
                                              el,
                                              er,
                                              largest,
                                              total,
                                              features,
                                              gradient,
                                              u_scale ? *u_scale : 1.0f,
                                              grad_scale ? *grad_scale : 1.0f,
                                              heads,
                                              width,
                                              slope,
                                              dropout,
                                              sums,
                                              statistics,
                                              d_u,
                                              d_el,
                                              d_er,
                                              &seen};
                const int64_t work = heads * (width + 16);
                const Error failed = for_split_rows<ByDestinationWorker<U, G, Index>>(threads, job.in.rows, work,
                                                                                      ByDestination<U, G, Index>{job});
                if (failed) return failed;
                return for_split_rows<BySourceWorker<U, G, Index>>(threads, job.out.rows, 2 * work,
                                                                   BySource<U, G, Index>{job});
            });
        });
    });
    *absmax = float_of(static_cast<uint32_t>(seen));
    return error;
}

}  // namespace gqc::GQC_ISA
