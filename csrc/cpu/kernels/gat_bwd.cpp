// The gradients of GAT's edge phase, see gat.cpp. Each edge's attention is computed again, in two passes that each
// gather rows of features once: by destination what a softmax's gradient subtracts and the gradient of er, by source
// the gradients of u and el. No sum has more than one writer.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/head_dots.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/split_rows.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int kStatistics = 4;  // of a destination and head: er, largest logit, 1 / total, what the gradient subtracts
constexpr int64_t kCachedBytes = 16384;

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
    const AttentionDropout& dropout;
    const HeadSums& sums;
    float* statistics;
    float* d_u;
    float* d_el;
    float* d_er;
    int32_t* absmax;
};

// The sums over edges of a * d, a * s and a * d * s, where a is the attention, d its gradient and s the slope of the
// leaky ReLU.
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
          logits_(values_of(kPart, job_.heads)),
          gradients_(values_of(kPart, job_.heads)),
          inverse_(job_.heads),
          partial_(job.partial_size()),
          dots_(job_.heads, job_.width),
          er_(job_.heads),
          largest_(job_.heads),
          factor_(job_.heads),
          sums_{Heads(job_.heads), Heads(job_.heads), Heads(job_.heads)} {}

    bool ok() const {
        return logits_.ok() && gradients_.ok() && inverse_.ok() && partial_.ok() && dots_.ok() && er_.ok() &&
               largest_.ok() && factor_.ok() && sums_[0].ok() && sums_[1].ok() && sums_[2].ok();
    }

    void row(int64_t v, int64_t begin, int64_t end) {
        if (begin == end) {
            for (int64_t h = 0; h < job_.heads; ++h) job_.d_er[v * job_.heads + h] = 0.0f;
            return;
        }
        part(v, begin, end, partial_.get());
        finish(v, partial_.get());
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        const int64_t heads = job_.heads, last = job_.in.rows.entries() - 1;
        const int64_t values = (end - begin) * heads, count = vectors(values);
        float* const logits = logits_.get();
        float* const gradients = gradients_.get();
        gather<1>(job_.el, job_.in.indices, begin, end, last, heads, {logits});
        dots_.fix(job_.grad + v * heads * job_.width);
        dots_.dot(job_.u, job_.in.indices, begin, end, last, job_.u_scale * job_.grad_scale, gradients);
        job_.dropout.drop(job_.in.eids + begin, end - begin, heads, gradients);
        for (int64_t h = 0; h < heads; ++h) inverse_[h] = 1.0f / job_.total[v * heads + h];
        er_.set(job_.er + v * heads);
        largest_.set(job_.largest + v * heads);
        factor_.set(inverse_.get());
        for (const Heads& sum : sums_) sum.fill(count, 0.0f);
        fill_up(gradients, values, 0.0f);
        for (int64_t i = 0; i < count; ++i) {
            const Floats logit = at(logits + i * kWidest) + at(er_.of(i));
            Floats a = exp_of_negative<kWidest>(leaky(logit, job_.slope) - at(largest_.of(i))) * at(factor_.of(i));
            if (i + 1 == count) a = without_filler(a, values);
            const Floats product = a * at(gradients + i * kWidest);
            add(0, i, product);
            add(1, i, leaky_gradient(logit, a, job_.slope));
            add(2, i, leaky_gradient(logit, product, job_.slope));
        }
        for (int s = 0; s < 3; ++s) {
            sums_[s].reduce(count, [](auto a, auto b) { return a + b; });
            for (int64_t h = 0; h < heads; ++h) partial[s * heads + h] = sums_[s][h];
        }
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = 3 * job_.heads;
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        finish(v, partials);
    }

  private:
    static Floats without_filler(Floats x, int64_t values) {
        float lanes[kWidest];
        put(lanes, x);
        for (int64_t i = (values - 1) % kWidest + 1; i < kWidest; ++i) lanes[i] = 0.0f;
        return at(lanes);
    }

    void add(int sum, int64_t i, Floats x) const { put(sums_[sum].of(i), at(sums_[sum].of(i)) + x); }

    void finish(int64_t v, const float* sums) const {
        const int64_t heads = job_.heads;
        float* const statistics = job_.statistics + v * kStatistics * heads;
        for (int64_t h = 0; h < heads; ++h) {
            statistics[h] = job_.er[v * heads + h];
            statistics[heads + h] = job_.largest[v * heads + h];
            statistics[2 * heads + h] = 1.0f / job_.total[v * heads + h];
            statistics[3 * heads + h] = sums[h];
            job_.d_er[v * heads + h] = sums[2 * heads + h] - sums[h] * sums[heads + h];
        }
    }

    const GatBwd<U, G, Index>& job_;
    const Buffer<float> logits_, gradients_, inverse_, partial_;
    HeadDots<G, U> dots_;
    const Heads er_, largest_, factor_;
    const Heads sums_[3];
};

template <typename U, typename G, typename Index>
struct BySource {
    const GatBwd<U, G, Index>& of;
    // Sums of the gradient of u, then the gradient of el.
    int64_t partial_size() const { return of.sums.size() + of.heads; }
    // Edges whose features stay in the cache between their two uses.
    int64_t edges_at_a_time() const {
        const int64_t edges = kCachedBytes / (of.heads * of.width * static_cast<int64_t>(sizeof(G)) + 1);
        return edges < 16 ? 16 : edges < 256 ? edges : 256;
    }
};

template <typename U, typename G, typename Index>
class BySourceWorker {
  public:
    explicit BySourceWorker(const BySource<U, G, Index>& job)
        : job_(job.of),
          step_(job.edges_at_a_time()),
          stride_(values_of(step_, job_.heads)),
          values_(7 * stride_),
          factors_(values_of(1, job_.heads)),
          partial_(job.partial_size()),
          dots_(job_.heads, job_.width),
          el_(job_.heads),
          sum_(job_.heads) {}
    ~BySourceWorker() { raise(job_.absmax, seen_); }

    bool ok() const { return values_.ok() && factors_.ok() && partial_.ok() && dots_.ok() && el_.ok() && sum_.ok(); }

    void row(int64_t v, int64_t begin, int64_t end) {
        part(v, begin, end, partial_.get());
        finish(v, partial_.get());
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        const int64_t heads = job_.heads;
        float* const d_el = partial + job_.sums.size();
        std::memset(partial, 0, static_cast<size_t>(job_.sums.size() + heads) * sizeof(float));
        if (begin == end) return;
        dots_.fix(job_.u + v * heads * job_.width);
        el_.set(job_.el + v * heads);
        const int64_t most = vectors((end - begin < step_ ? end - begin : step_) * heads);
        sum_.fill(most, 0.0f);
        for (int64_t p = begin; p < end; p += step_) step(p, p + step_ < end ? p + step_ : end, partial);
        sum_.reduce(most, [](auto a, auto b) { return a + b; });
        for (int64_t h = 0; h < heads; ++h) d_el[h] = sum_[h];
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = job_.sums.size() + job_.heads;
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        finish(v, partials);
    }

  private:
    void step(int64_t begin, int64_t end, float* sums) {
        const int64_t heads = job_.heads, last = job_.out.rows.entries() - 1;
        const int64_t values = (end - begin) * heads, count = vectors(values);
        float* const gradients = values_.get();
        float* const er = gradients + stride_;
        float* const largest = gradients + 2 * stride_;
        float* const inverse = gradients + 3 * stride_;
        float* const subtracted = gradients + 4 * stride_;
        float* const weights = gradients + 5 * stride_;
        float* const mask = gradients + 6 * stride_;
        dots_.dot(job_.grad, job_.out.indices, begin, end, last, job_.u_scale * job_.grad_scale, gradients);
        gather<kStatistics>(job_.statistics, job_.out.indices, begin, end, last, heads,
                            {er, largest, inverse, subtracted});
        // Filled up so that the attention there is 0.
        fill_up(gradients, values, 0.0f);
        fill_up(er, values, 0.0f);
        fill_up(largest, values, -kLowest);
        fill_up(inverse, values, 0.0f);
        fill_up(subtracted, values, 0.0f);
        if (job_.dropout.seed) {
            for (int64_t i = 0; i < count * kWidest; ++i) mask[i] = 1.0f;
            job_.dropout.drop(job_.out.eids + begin, end - begin, heads, mask);
        }
        for (int64_t i = 0; i < count; ++i) {
            const int64_t n = i * kWidest;
            const Floats logit = at(el_.of(i)) + at(er + n);
            const Floats a = exp_of_negative<kWidest>(leaky(logit, job_.slope) - at(largest + n)) * at(inverse + n);
            Floats gradient = at(gradients + n), weight = a;
            if (job_.dropout.seed) gradient *= at(mask + n), weight *= at(mask + n);
            put(weights + n, weight);
            const Floats of_logit = leaky_gradient(logit, a * (gradient - at(subtracted + n)), job_.slope);
            put(sum_.of(i), at(sum_.of(i)) + of_logit);
        }
        job_.sums.template add<false>(job_.grad, job_.out.indices, begin, end, last, weights, sums);
    }

    void finish(int64_t v, const float* partial) {
        const int64_t heads = job_.heads;
        for (int64_t h = 0; h < heads; ++h) factors_[h] = job_.grad_scale;
        job_.sums.scale(partial, factors_.get(), job_.d_u + v * heads * job_.width, seen_);
        std::memcpy(job_.d_el + v * heads, partial + job_.sums.size(), static_cast<size_t>(heads) * sizeof(float));
    }

    const GatBwd<U, G, Index>& job_;
    const int64_t step_, stride_;
    const Buffer<float> values_, factors_, partial_;
    HeadDots<U, G> dots_;
    const Heads el_, sum_;
    int32_t seen_ = 0;
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
    const AttentionDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
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
