// The gradients of an edge phase, see gat.cpp. Each edge's attention is computed again, in two passes that each gather
// rows of features once: by destination what a softmax's gradient subtracts and the gradient of er or queries, by
// source the gradients of u and el or keys. No sum has more than one writer.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/attention_rows.h"
#include "cpu/graph/attention_scores.h"
#include "cpu/graph/edge_dropout.h"
#include "cpu/graph/feature_dots.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/score_gradients.h"
#include "cpu/graph/split_rows.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int kStatistics = 4;  // of a destination and head: er, largest logit, 1 / total, what the gradient subtracts

struct GatBwd {
    Neighbours in, out;
    const float* el;
    const float* er;
    const Keys& keys;  // in the place of el and er
    const float* largest;
    const float* total;
    Features u, grad;
    float u_scale, grad_scale;
    int64_t heads, width;
    float slope;
    const EdgeDropout& dropout;
    const HeadSums& sums;
    float* statistics;
    float* d_u;
    float* d_el;
    float* d_er;
    const ScoreGradients* d_keys;
    const ScoreGradients* d_queries;
    float* d_k;
    float* d_q;
    int32_t* absmax;
};

// The sums over edges of a * d, a * s and a * d * s, where a is the attention before it is divided by its sum, d its
// gradient and s the slope of the leaky ReLU; then the sums of a * d and of a that queries' gradients take.
struct ByDestination {
    const GatBwd& of;
    using Partial = float;
    int64_t partial_size() const { return 3 * of.heads + 2 * of.d_queries->size(); }
};

class ByDestinationWorker {
  public:
    explicit ByDestinationWorker(const ByDestination& job)
        : job_(job.of),
          heads_(job_.heads),
          logits_(values_of(kPart, heads_)),
          gradients_(dots_of(kPart, heads_)),
          weights_(job_.keys.k ? values_of(kPart, heads_) : 0),
          kept_(EdgeDropout::size(kPart, heads_) + kWidest),
          partial_(3 * heads_),
          factors_(2 * heads_ + 2 * kWidest),
          bounds_(kWindow + 1),
          scores_(job_.keys),
          dots_(job_.grad, job_.u, heads_, job_.width),
          scratch_(heads_, 5),
          streamed_(job_.d_queries->is_streamed(job_.d_q, job_.in.count)) {}
    ~ByDestinationWorker() { end_stream(); }

    bool ok() {
        return logits_.ok() && gradients_.ok() && weights_.ok() && kept_.ok() && bounds_.ok() && partial_.ok() &&
               factors_.ok() && scores_.ok() && dots_.ok() && scratch_.ok();
    }

    void rows(int64_t first, int64_t last) {
        int64_t* const bounds = bounds_.get();
        job_.in.indptr.copy(first, last + 1, bounds);
        const int64_t loaded = bounds[0], count = last - first;
        load(loaded, bounds[count]);
        multiply_rows(first, count, bounds);
        with_heads(heads_, [&](auto known) {
            for (int64_t i = 0; i < count; ++i) {
                const int64_t v = first + i, begin = bounds[i], end = bounds[i + 1];
                if (begin == end) {
                    if (job_.d_er) std::memset(job_.d_er + v * heads_, 0, static_cast<size_t>(heads_) * sizeof(float));
                    continue;
                }
                add_up<known>(v, loaded, begin, end, partial_.get());
                finish(v, partial_.get());
                if (job_.keys.k) of_logits<known>(v, loaded, begin, end);
            }
        });
        if (!job_.keys.k) return;
        const int64_t row = job_.keys.row();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t v = first + i;
            job_.d_queries->write(v, job_.keys.q + v * row,
                                  weighted(gradients_.get(), loaded, bounds[i], bounds[i + 1]), job_.d_q + v * row,
                                  streamed_, unused_);
        }
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        load(begin, end);
        const int64_t bounds[] = {begin, end};
        multiply_rows(v, 1, bounds);
        with_heads(heads_, [&](auto known) { add_up<known>(v, begin, begin, end, partial); });
        if (!job_.keys.k) return;
        float* const sums = partial + 3 * heads_;
        const int64_t size = job_.d_queries->size();
        const float* const query = job_.keys.q + v * job_.keys.row();
        std::memset(sums, 0, static_cast<size_t>(2 * size) * sizeof(float));
        job_.d_queries->add(query, weighted(gradients_.get(), begin, begin, end), sums);
        job_.d_queries->add(query, weighted(weights_.get(), begin, begin, end), sums + size);
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = 3 * heads_ + 2 * job_.d_queries->size();
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        finish(v, partials);
        if (!job_.keys.k) return;
        const float* const inverse = job_.statistics + (v * kStatistics + 2) * heads_;
        const float* const subtracted = inverse + heads_;
        float* const of_others = factors_.get() + heads_ + kWidest;
        for (int64_t h = 0; h < heads_; ++h) {
            factors_[h] = inverse[h];
            of_others[h] = -subtracted[h] * inverse[h];
        }
        float* const sums = partials + 3 * heads_;
        job_.d_queries->join(sums, factors_.get(), sums + job_.d_queries->size(), of_others);
        job_.d_queries->write_sums(sums, job_.d_q + v * job_.keys.row(), unused_);
    }

  private:
    // What entries begin .. end read, but for the features.
    void load(int64_t begin, int64_t end) {
        if (job_.el) gather<1>(job_.el, job_.in.indices, begin, end, last_entry(), heads_, {logits_.get()});
        if (job_.dropout.seed) job_.dropout.factors(job_.in.eids, begin, end, heads_, kept_.get());
    }

    // The gradients of the attention of entries, before dropout, and logits from keys: of `count` rows from `first` on,
    // whose entries bounds[0] .. bounds[count] are loaded.
    void multiply_rows(int64_t first, int64_t count, const int64_t* bounds) {
        const int64_t last = last_entry();
        const auto score = [&](int64_t v, int64_t begin, int64_t end, int64_t offset) {
            if (!job_.keys.k) return;
            scores_.compute(job_.keys.q + v * job_.keys.row(), job_.keys.k, job_.in.indices, begin, end, last,
                            logits_.get() + offset);
        };
        dots_.dot_rows(first, count, bounds, job_.in.indices, last, job_.u_scale * job_.grad_scale, gradients_.get(),
                       score);
    }

    // The sums of entries begin .. end of row v. With keys a * d and a stay in gradients_ and weights_.
    template <int Known>
    void add_up(int64_t v, int64_t loaded, int64_t begin, int64_t end, float* sums) const {
        const int64_t offset = (begin - loaded) * heads_;
        const LogitsOf of{logits_.get() + offset, job_.er ? job_.er + v * heads_ : nullptr, job_.slope,
                          (end - begin) * heads_};
        sums_of_row<Known>(scratch_, of, job_.largest + v * heads_, job_.dropout.seed ? kept_.get() + offset : nullptr,
                           gradients_.get() + offset, job_.keys.k ? weights_.get() + offset : nullptr, sums);
    }

    void finish(int64_t v, const float* sums) const {
        float* const statistics = job_.statistics + v * kStatistics * heads_;
        for (int64_t h = 0; h < heads_; ++h) {
            const float inverse = 1.0f / job_.total[v * heads_ + h], dot = sums[h] * inverse;
            statistics[h] = job_.er ? job_.er[v * heads_ + h] : 0.0f;
            statistics[heads_ + h] = job_.largest[v * heads_ + h];
            statistics[2 * heads_ + h] = inverse;
            statistics[3 * heads_ + h] = dot;
            if (job_.d_er) job_.d_er[v * heads_ + h] = (sums[2 * heads_ + h] - dot * sums[heads_ + h]) * inverse;
        }
    }

    // gradients_ = gradients of the logits, of what add_up left and finish found.
    template <int Known>
    void of_logits(int64_t v, int64_t loaded, int64_t begin, int64_t end) {
        const int64_t offset = (begin - loaded) * heads_;
        const float* const inverse = job_.statistics + (v * kStatistics + 2) * heads_;
        logit_gradients_of_row<Known>(scratch_, (end - begin) * heads_, weights_.get() + offset, inverse,
                                      inverse + heads_, gradients_.get() + offset);
    }

    WeightedRows weighted(const float* weights, int64_t loaded, int64_t begin, int64_t end) const {
        return {{job_.keys.k, false}, job_.in.indices, begin, end, last_entry(), weights + (begin - loaded) * heads_};
    }

    int64_t last_entry() const { return job_.in.last_entry(); }

    const GatBwd& job_;
    const int64_t heads_;
    const Buffer<float> logits_, gradients_, weights_, kept_, partial_, factors_;
    const Buffer<int64_t> bounds_;  // where the rows of a window start, and their end
    Scores scores_;
    FeatureDots dots_;
    const HeadScratch scratch_;
    const bool streamed_;
    LargestSeen unused_;
};

struct BySource {
    const GatBwd& of;
    // Sums of the gradient of u, then the gradient of el, then sums of that of keys.
    using Partial = float;
    int64_t partial_size() const { return of.sums.size() + of.heads + of.d_keys->size(); }
};

class BySourceWorker {
  public:
    explicit BySourceWorker(const BySource& job)
        : job_(job.of),
          heads_(job_.heads),
          stride_(values_of(kPart, heads_)),
          statistics_(kStatistics * stride_),
          gradients_(dots_of(kPart, heads_)),
          weights_(stride_),
          kept_(EdgeDropout::size(kPart, heads_) + kWidest),
          factors_(values_of(1, heads_)),
          unused_d_el_(heads_),
          bounds_(kWindow + 1),
          scores_(job_.keys),
          dots_(job_.u, job_.grad, heads_, job_.width),
          scratch_(heads_, 2),
          streamed_(job_.sums.is_streamed(job_.d_u, job_.out.count)),
          streamed_keys_(job_.d_keys->is_streamed(job_.d_k, job_.out.count)) {
        if (factors_.ok())
            for (int64_t h = 0; h < heads_; ++h) factors_[h] = job_.grad_scale;
    }
    ~BySourceWorker() {
        end_stream();
        raise(job_.absmax, seen_.get());
    }

    bool ok() {
        return statistics_.ok() && gradients_.ok() && weights_.ok() && kept_.ok() && bounds_.ok() && factors_.ok() &&
               unused_d_el_.ok() && scores_.ok() && dots_.ok() && scratch_.ok();
    }

    void rows(int64_t first, int64_t last) {
        int64_t* const bounds = bounds_.get();
        job_.out.indptr.copy(first, last + 1, bounds);
        const int64_t loaded = bounds[0], count = last - first;
        load(loaded, bounds[count]);
        multiply_rows(first, count, bounds);
        with_heads(heads_, [&](auto known) {
            for (int64_t i = 0; i < count; ++i) {
                const int64_t v = first + i;
                weigh<known>(v, loaded, bounds[i], bounds[i + 1],
                             job_.d_el ? job_.d_el + v * heads_ : unused_d_el_.get());
            }
        });
        job_.sums.write_all<false>(weighted(loaded, loaded, bounds[count]), count, bounds, factors_.get(), 0,
                                   job_.d_u + first * heads_ * job_.width, streamed_, seen_);
        if (!job_.keys.k) return;
        const int64_t key = job_.keys.row();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t v = first + i;
            job_.d_keys->write(v, job_.keys.k + v * key, weighted_queries(loaded, bounds[i], bounds[i + 1]),
                               job_.d_k + v * key, streamed_keys_, unused_);
        }
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        load(begin, end);
        const int64_t bounds[] = {begin, end};
        multiply_rows(v, 1, bounds);
        with_heads(heads_, [&](auto known) { weigh<known>(v, begin, begin, end, partial + job_.sums.size()); });
        std::memset(partial, 0, static_cast<size_t>(job_.sums.size()) * sizeof(float));
        job_.sums.add<false>(weighted(begin, begin, end), partial);
        if (!job_.keys.k) return;
        float* const sums = partial + job_.sums.size() + heads_;
        std::memset(sums, 0, static_cast<size_t>(job_.d_keys->size()) * sizeof(float));
        job_.d_keys->add(job_.keys.k + v * job_.keys.row(), weighted_queries(begin, begin, end), sums);
    }

    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = job_.sums.size() + heads_ + job_.d_keys->size();
        for (int64_t part = 1; part < parts; ++part)
            for (int64_t i = 0; i < size; ++i) partials[i] += partials[part * size + i];
        job_.sums.write_sums(partials, factors_.get(), job_.d_u + v * heads_ * job_.width, seen_);
        const float* const d_el = partials + job_.sums.size();
        if (job_.d_el) std::memcpy(job_.d_el + v * heads_, d_el, static_cast<size_t>(heads_) * sizeof(float));
        if (job_.keys.k) job_.d_keys->write_sums(d_el + heads_, job_.d_k + v * job_.keys.row(), unused_);
    }

  private:
    // What entries begin .. end read, but for the features.
    void load(int64_t begin, int64_t end) {
        float* const to = statistics_.get();
        gather<kStatistics>(job_.statistics, job_.out.indices, begin, end, last_entry(), heads_,
                            {to, to + stride_, to + 2 * stride_, to + 3 * stride_});
        if (job_.dropout.seed) job_.dropout.factors(job_.out.eids, begin, end, heads_, kept_.get());
    }

    // As in ByDestinationWorker. Logits from keys take the place of er, and 0 that of el.
    void multiply_rows(int64_t first, int64_t count, const int64_t* bounds) {
        const int64_t last = last_entry();
        const auto score = [&](int64_t v, int64_t begin, int64_t end, int64_t offset) {
            if (!job_.keys.k) return;
            scores_.compute(job_.keys.k + v * job_.keys.row(), job_.keys.q, job_.out.indices, begin, end, last,
                            statistics_.get() + offset);
        };
        dots_.dot_rows(first, count, bounds, job_.out.indices, last, job_.u_scale * job_.grad_scale, gradients_.get(),
                       score);
    }

    // The weights of entries begin .. end of row v in the gradient of u, and the gradient of el. With keys the
    // gradients of logits stay in gradients_.
    template <int Known>
    void weigh(int64_t v, int64_t loaded, int64_t begin, int64_t end, float* d_el) {
        const int64_t offset = (begin - loaded) * heads_;
        const float* const er = statistics_.get() + offset;
        const LogitsOf of{er, job_.el ? job_.el + v * heads_ : nullptr, job_.slope, (end - begin) * heads_};
        weigh_row<Known>(scratch_, of, {er + stride_, er + 2 * stride_, er + 3 * stride_},
                         job_.dropout.seed ? kept_.get() + offset : nullptr, job_.keys.k, gradients_.get() + offset,
                         weights_.get() + offset, d_el);
    }

    WeightedRows weighted(int64_t loaded, int64_t begin, int64_t end) const {
        return {job_.grad, job_.out.indices, begin, end, last_entry(), weights_.get() + (begin - loaded) * heads_};
    }

    WeightedRows weighted_queries(int64_t loaded, int64_t begin, int64_t end) const {
        return {{job_.keys.q, false},
                job_.out.indices,
                begin,
                end,
                last_entry(),
                gradients_.get() + (begin - loaded) * heads_};
    }

    int64_t last_entry() const { return job_.out.last_entry(); }

    const GatBwd& job_;
    const int64_t heads_, stride_;
    const Buffer<float> statistics_, gradients_, weights_, kept_, factors_, unused_d_el_;
    const Buffer<int64_t> bounds_;  // where the rows of a window start, and their end
    Scores scores_;
    FeatureDots dots_;
    const HeadScratch scratch_;
    const bool streamed_, streamed_keys_;
    LargestSeen seen_, unused_;
};

// What the kernels get.
struct Arguments {
    int64_t threads, is_int64, sources, destinations;
    const void *in_indptr, *in_indices, *in_eids, *out_indptr, *out_indices, *out_eids;
    const float *largest, *total;
    const void* u;
    const float* u_scale;
    const void* grad;
    const float* grad_scale;
    int64_t heads, width;
    float *statistics, *d_u, *absmax;
};
// Logits of numbers, with their gradients, ..
struct Numbers {
    const float *el, *er;
    float slope;
    float *d_el, *d_er;
};
// .. or of keys and queries.
struct KeyGradients {
    float *d_k, *d_q, *d_a;
};

// The rows that were worked on in parts, and the gradient of `a`.
void finish_gradients(const ScoreGradients& gradients, const Neighbours& rows, const float* fixed, int64_t width,
                      float* to, double* d_a) {
    for (int64_t v = 0; v < rows.count; ++v) {
        if (rows.indptr[v + 1] - rows.indptr[v] > kPart) gradients.finish_long(v, fixed + v * width, to + v * width);
    }
    gradients.add_gradient(rows.count, d_a);
}

Error attend_bwd(const Arguments& x, const Numbers& numbers, const Keys& keys, const KeyGradients& of,
                 const EdgeDropout& dropout) {
    if (x.width > kExactSums) return "a head is too wide: sums of its products may overflow";
    const HeadSums sums(x.heads, x.width);
    const ScoreGradients d_keys(keys, x.sources), d_queries(keys, x.destinations);
    const Buffer<double> d_a(keys.a ? keys.row() : 0);
    if (!sums.ok() || !d_keys.ok() || !d_queries.ok() || !d_a.ok()) return kOutOfMemory;
    int32_t seen = 0;
    const GatBwd job{{x.in_indptr, x.destinations, x.in_indices, x.in_eids, x.is_int64 != 0},
                     {x.out_indptr, x.sources, x.out_indices, x.out_eids, x.is_int64 != 0},
                     numbers.el,
                     numbers.er,
                     keys,
                     x.largest,
                     x.total,
                     {x.u, x.u_scale != nullptr},
                     {x.grad, x.grad_scale != nullptr},
                     x.u_scale ? *x.u_scale : 1.0f,
                     x.grad_scale ? *x.grad_scale : 1.0f,
                     x.heads,
                     x.width,
                     numbers.slope,
                     dropout,
                     sums,
                     x.statistics,
                     x.d_u,
                     numbers.d_el,
                     numbers.d_er,
                     &d_keys,
                     &d_queries,
                     of.d_k,
                     of.d_q,
                     &seen};
    const int64_t work = x.heads * (x.width + 2 * keys.width + 16);
    const int64_t block = keys.a ? ScoreGradients::kBlock : 1;
    Error error = job.in.with_rows([&](auto rows) {
        return for_split_rows<ByDestinationWorker>(x.threads, rows, work, ByDestination{job}, block);
    });
    if (!error) {
        error = job.out.with_rows(
            [&](auto rows) { return for_split_rows<BySourceWorker>(x.threads, rows, 2 * work, BySource{job}, block); });
    }
    *x.absmax = float_of(static_cast<uint32_t>(seen));
    if (error || !keys.a) return error;
    d_a.clear();
    finish_gradients(d_queries, job.in, keys.q, keys.row(), of.d_q, d_a.get());
    finish_gradients(d_keys, job.out, keys.k, keys.row(), of.d_k, d_a.get());
    for (int64_t i = 0; i < keys.row(); ++i) of.d_a[i] = static_cast<float>(d_a[i]);
    return nullptr;
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
    const EdgeDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
    const Keys none{nullptr, nullptr, nullptr, 1.0f, heads, 0};
    const Arguments arguments{threads,    is_int64,    sources,  destinations, in_indptr,  in_indices, in_eids,
                              out_indptr, out_indices, out_eids, largest,      total,      u,          u_scale,
                              grad,       grad_scale,  heads,    width,        statistics, d_u,        absmax};
    return attend_bwd(arguments, {el, er, slope, d_el, d_er}, none, {}, dropout);
}

// As attend. d_k: [sources, heads, key_width], d_q: [destinations, heads, key_width], d_a: [heads, key_width], which is
// written where there is an `a`.
GQC_KERNEL(attend_bwd)(int64_t threads, int64_t is_int64, int64_t sources, int64_t destinations, const void* in_indptr,
                       const void* in_indices, const void* in_eids, const void* out_indptr, const void* out_indices,
                       const void* out_eids, const float* k, const float* q, const float* a, float key_factor,
                       int64_t key_width, const float* largest, const float* total, const void* u, const float* u_scale,
                       const void* grad, const float* grad_scale, int64_t heads, int64_t width, const int64_t* seed,
                       int64_t node, int64_t threshold, float factor, float* statistics, float* d_u, float* absmax,
                       float* d_k, float* d_q, float* d_a) {
    const EdgeDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
    const Keys keys{k, q, a, key_factor, heads, key_width};
    const Arguments arguments{threads,    is_int64,    sources,  destinations, in_indptr,  in_indices, in_eids,
                              out_indptr, out_indices, out_eids, largest,      total,      u,          u_scale,
                              grad,       grad_scale,  heads,    width,        statistics, d_u,        absmax};
    return attend_bwd(arguments, {nullptr, nullptr, 1.0f, nullptr, nullptr}, keys, {d_k, d_q, d_a}, dropout);
}

}  // namespace gqc::GQC_ISA
