// The edge phase of graph attention: logits, softmax over the in-edges, dropout and the weighted sum of the sources'
// features, without tensors on edges. Logits are leaky ReLUs of a source's plus a destination's number (GAT) or come
// from their keys and queries.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/attention_rows.h"
#include "cpu/graph/attention_scores.h"
#include "cpu/graph/edge_dropout.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/split_rows.h"

namespace gqc::GQC_ISA {
namespace {

struct Gat {
    Neighbours in;
    const float* el;
    const float* er;
    const Keys& keys;  // in the place of el and er
    Features u;
    float scale;
    float slope;
    const EdgeDropout& dropout;
    const HeadSums& sums;
    float* out;
    float* largest_logit;
    float* total;
    int32_t* absmax;

    // Sums, then the largest logit and the sum of exponentials of each head.
    using Partial = float;
    int64_t partial_size() const { return sums.size() + 2 * sums.heads; }
};

class GatWorker {
  public:
    explicit GatWorker(const Gat& job)
        : job_(job),
          heads_(job.sums.heads),
          logits_(values_of(kPart, heads_)),
          weights_(values_of(kPart, heads_)),
          kept_(EdgeDropout::size(kPart, heads_) + kWidest),
          factors_(values_of(kWindow, heads_) + values_of(1, heads_)),
          bounds_(kWindow + 1),
          scores_(job.keys),
          scratch_(heads_, 3),
          streamed_(job.sums.is_streamed(job.out, job.in.count)) {}
    ~GatWorker() {
        end_stream();
        raise(job_.absmax, seen_.get());
    }

    bool ok() const {
        return logits_.ok() && weights_.ok() && kept_.ok() && bounds_.ok() && factors_.ok() && scores_.ok() &&
               scratch_.ok();
    }

    void rows(int64_t first, int64_t last) {
        int64_t* const bounds = bounds_.get();
        job_.in.indptr.copy(first, last + 1, bounds);
        const int64_t begin = bounds[0], count = last - first;
        load(begin, bounds[count]);
        for (int64_t i = 0; i < count; ++i) score(first + i, begin, bounds[i], bounds[i + 1]);
        with_heads(heads_, [&](auto known) {
            for (int64_t i = 0; i < count; ++i) {
                const int64_t of_row = (first + i) * heads_;
                attend<known>(first + i, begin, bounds[i], bounds[i + 1], job_.largest_logit + of_row,
                              job_.total + of_row, factors_.get() + i * heads_);
            }
        });
        job_.sums.write_all<true>(weighted(begin, begin, bounds[count]), count, bounds, factors_.get(), heads_,
                                  job_.out + first * heads_ * job_.sums.width, streamed_, seen_);
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        float* const statistics = partial + job_.sums.size();
        load(begin, end);
        score(v, begin, begin, end);
        with_heads(heads_, [&](auto known) {
            attend<known>(v, begin, begin, end, statistics, statistics + heads_, factors_.get());
        });
        std::memset(partial, 0, static_cast<size_t>(job_.sums.size()) * sizeof(float));
        job_.sums.add<true>(weighted(begin, begin, end), partial);
    }

    // Brings the parts, one after the other, to a common largest logit.
    void join(int64_t v, float* partials, int64_t parts) {
        const int64_t size = job_.sums.size();
        float* const largest = job_.largest_logit + v * heads_;
        float* const total = job_.total + v * heads_;
        float* const old = factors_.get();
        float* const of_added = old + values_of(1, heads_);
        std::memcpy(largest, partials + size, static_cast<size_t>(heads_) * sizeof(float));
        std::memcpy(total, partials + size + heads_, static_cast<size_t>(heads_) * sizeof(float));
        for (int64_t part = 1; part < parts; ++part) {
            const float* const added = partials + part * job_.partial_size();
            join_softmax(heads_, largest, total, added + size, added + size + heads_, old, of_added);
            job_.sums.join(partials, old, added, of_added);
        }
        for (int64_t h = 0; h < heads_; ++h) factors_[h] = job_.scale / total[h];
        job_.sums.write_sums(partials, factors_.get(), job_.out + v * heads_ * job_.sums.width, seen_);
    }

  private:
    // What entries begin .. end read.
    void load(int64_t begin, int64_t end) {
        if (job_.el) gather<1>(job_.el, job_.in.indices, begin, end, last_entry(), heads_, {logits_.get()});
        if (job_.dropout.seed) job_.dropout.factors(job_.in.eids, begin, end, heads_, kept_.get());
    }

    // The logits of entries begin .. end of row v where they are not made of numbers that load() gathers.
    void score(int64_t v, int64_t loaded, int64_t begin, int64_t end) {
        if (!job_.keys.k) return;
        scores_.compute(job_.keys.q + v * job_.keys.row(), job_.keys.k, job_.in.indices, begin, end, last_entry(),
                        logits_.get() + (begin - loaded) * heads_);
    }

    // The weights exp(logit - largest) of entries begin .. end of row v, of those loaded from `loaded` on.
    template <int Known>
    void attend(int64_t v, int64_t loaded, int64_t begin, int64_t end, float* largest, float* total, float* factors) {
        const int64_t offset = (begin - loaded) * heads_;
        if (begin == end) {
            for (int64_t h = 0; h < heads_; ++h) largest[h] = total[h] = 0.0f, factors[h] = job_.scale;
            return;
        }
        const LogitsOf of{logits_.get() + offset, job_.er ? job_.er + v * heads_ : nullptr, job_.slope,
                          (end - begin) * heads_};
        softmax_of_row<Known>(scratch_, of, job_.dropout.seed ? kept_.get() + offset : nullptr, weights_.get() + offset,
                              largest, total);
        for (int64_t h = 0; h < heads_; ++h) factors[h] = job_.scale / total[h];
    }

    WeightedRows weighted(int64_t loaded, int64_t begin, int64_t end) const {
        return {job_.u, job_.in.indices, begin, end, last_entry(), weights_.get() + (begin - loaded) * heads_};
    }

    int64_t last_entry() const { return job_.in.last_entry(); }

    const Gat& job_;
    const int64_t heads_;
    const Buffer<float> logits_, weights_, kept_, factors_;
    const Buffer<int64_t> bounds_;  // where the rows of a window start, and their end
    Scores scores_;
    const HeadScratch scratch_;
    const bool streamed_;
    LargestSeen seen_;
};

struct Output {
    float* out;
    float* absmax;
    float* largest;
    float* total;
};

// All of an edge phase; el, er and slope go without keys, and keys without them.
Error attend(int64_t threads, int64_t is_int64, int64_t rows, const void* indptr, const void* indices, const void* eids,
             const float* el, const float* er, float slope, const Keys& keys, const void* u, const float* u_scale,
             int64_t heads, int64_t width, const EdgeDropout& dropout, const Output& to) {
    const Neighbours in(indptr, rows, indices, eids, is_int64 != 0);
    const HeadSums sums(heads, width);
    if (!sums.ok()) return kOutOfMemory;
    int32_t seen = 0;
    const Features features{u, u_scale != nullptr};
    const float scale = u_scale ? *u_scale : 1.0f;
    const Gat job{in, el, er, keys, features, scale, slope, dropout, sums, to.out, to.largest, to.total, &seen};
    const int64_t work = heads * (width + (keys.k ? keys.width : 0) + 16);
    const Error error =
        in.with_rows([&](auto matrix) { return for_split_rows<GatWorker>(threads, matrix, work, job); });
    *to.absmax = float_of(static_cast<uint32_t>(seen));
    return error;
}

}  // namespace

// el: [sources, heads], er: [rows, heads]; u: [sources, heads, width], int8 where u_scale is no null pointer, else
// float; out: [rows, heads, width]; absmax: of out, NaN if it holds NaN; largest and total, [rows, heads]: of the
// softmax. The CPU does without the number of edges.
GQC_KERNEL(gat)(int64_t threads, int64_t is_int64, int64_t rows, int64_t /*edges*/, const void* indptr,
                const void* indices, const void* eids, const float* el, const float* er, const void* u,
                const float* u_scale, int64_t heads, int64_t width, float slope, const int64_t* seed, int64_t node,
                int64_t threshold, float factor, float* out, float* absmax, float* largest, float* total) {
    const EdgeDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
    const Keys none{nullptr, nullptr, nullptr, 1.0f, heads, 0};
    return attend(threads, is_int64, rows, indptr, indices, eids, el, er, slope, none, u, u_scale, heads, width,
                  dropout, {out, absmax, largest, total});
}

// As gat, with logits from k, [sources, heads, key_width], and q, [rows, heads, key_width]: key_factor * <k, q>, or
// <a, leaky ReLU(k + q)> of slope key_factor where a, [heads, key_width], is no null pointer.
GQC_KERNEL(attend)(int64_t threads, int64_t is_int64, int64_t rows, const void* indptr, const void* indices,
                   const void* eids, const float* k, const float* q, const float* a, float key_factor,
                   int64_t key_width, const void* u, const float* u_scale, int64_t heads, int64_t width,
                   const int64_t* seed, int64_t node, int64_t threshold, float factor, float* out, float* absmax,
                   float* largest, float* total) {
    const EdgeDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
    const Keys keys{k, q, a, key_factor, heads, key_width};
    return attend(threads, is_int64, rows, indptr, indices, eids, nullptr, nullptr, 1.0f, keys, u, u_scale, heads,
                  width, dropout, {out, absmax, largest, total});
}

}  // namespace gqc::GQC_ISA
