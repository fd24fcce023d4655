// The edge phase of graph attention: logits, leaky ReLU, softmax over the in-edges, dropout and the weighted sum of the
// sources' features, without tensors on edges.

#include "common/buffer.h"
#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/head_sums.h"
#include "cpu/graph/split_rows.h"

namespace gqc::GQC_ISA {
namespace {

template <typename T, typename Index>
struct Gat {
    Neighbours<Index> in;
    const float* el;
    const float* er;
    const T* u;
    float scale;
    float slope;
    const AttentionDropout& dropout;
    const HeadSums& sums;
    float* out;
    float* largest_logit;
    float* total;
    int32_t* absmax;

    // Sums, then the largest logit and the sum of exponentials of each head.
    int64_t partial_size() const { return sums.size() + 2 * sums.heads; }
};

template <typename T, typename Index>
class GatWorker {
  public:
    explicit GatWorker(const Gat<T, Index>& job)
        : job_(job),
          heads_(job.sums.heads),
          weights_(values_of(kPart, heads_)),
          factors_(2 * values_of(1, heads_)),
          sums_(job.sums.size()),
          er_(heads_),
          state_(heads_) {}
    ~GatWorker() { raise(job_.absmax, seen_); }

    bool ok() const { return weights_.ok() && factors_.ok() && sums_.ok() && er_.ok() && state_.ok(); }

    void row(int64_t v, int64_t begin, int64_t end) {
        float* const largest = job_.largest_logit + v * heads_;
        float* const total = job_.total + v * heads_;
        std::memset(sums_.get(), 0, static_cast<size_t>(job_.sums.size()) * sizeof(float));
        if (begin == end) {
            for (int64_t h = 0; h < heads_; ++h) largest[h] = total[h] = 0.0f, factors_[h] = job_.scale;
            job_.sums.scale(sums_.get(), factors_.get(), job_.out + v * heads_ * job_.sums.width, seen_);
            return;
        }
        attend(v, begin, end, largest, total, sums_.get());
        finish(v, total, sums_.get());
    }

    void part(int64_t v, int64_t begin, int64_t end, float* partial) {
        float* const statistics = partial + job_.sums.size();
        std::memset(partial, 0, static_cast<size_t>(job_.sums.size()) * sizeof(float));
        attend(v, begin, end, statistics, statistics + heads_, partial);
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
            for (int64_t h = 0; h < heads_; ++h) {
                const float here = added[size + h], most = larger(here, largest[h]);
                old[h] = exp_of_negative<1>(largest[h] - most);
                of_added[h] = exp_of_negative<1>(here - most);
                largest[h] = most;
                total[h] = total[h] * old[h] + added[size + heads_ + h] * of_added[h];
            }
            job_.sums.join(partials, old, added, of_added);
        }
        finish(v, total, partials);
    }

  private:
    // Adds up exp(logit - largest) * u for entries begin .. end of row v.
    void attend(int64_t v, int64_t begin, int64_t end, float* largest, float* total, float* sums) {
        const int64_t last = job_.in.rows.entries() - 1, values = (end - begin) * heads_, count = vectors(values);
        float* const weights = weights_.get();
        gather<1>(job_.el, job_.in.indices, begin, end, last, heads_, {weights});
        er_.set(job_.er + v * heads_);
        for (int64_t i = 0; i < count; ++i) {
            float* const x = weights + i * kWidest;
            put(x, leaky(at(x) + at(er_.of(i)), job_.slope));
        }
        // Not -Inf: a head whose logits are all -Inf in this part may have others.
        fill_up(weights, values, -__builtin_inff());
        const auto value = [&](int64_t i) { return at(weights + i * kWidest); };
        state_.combine(count, kLowest, [](auto a, auto b) { return larger(a, b); }, value);
        for (int64_t h = 0; h < heads_; ++h) largest[h] = state_[h];
        for (int64_t i = 0; i < count; ++i) {
            float* const x = weights + i * kWidest;
            put(x, exp_of_negative<kWidest>(at(x) - at(state_.of(i))));
        }
        state_.combine(count, 0.0f, [](auto a, auto b) { return a + b; }, value);
        for (int64_t h = 0; h < heads_; ++h) total[h] = state_[h];
        job_.dropout.drop(job_.in.eids + begin, end - begin, heads_, weights);
        job_.sums.template add<true>(job_.u, job_.in.indices, begin, end, last, weights, sums);
    }

    void finish(int64_t v, const float* total, const float* sums) {
        for (int64_t h = 0; h < heads_; ++h) factors_[h] = job_.scale / total[h];
        job_.sums.scale(sums, factors_.get(), job_.out + v * heads_ * job_.sums.width, seen_);
    }

    const Gat<T, Index>& job_;
    const int64_t heads_;
    const Buffer<float> weights_, factors_, sums_;
    const Heads er_, state_;
    int32_t seen_ = 0;
};

}  // namespace

// el: [sources, heads], er: [rows, heads]; u: [sources, heads, width], int8 where u_scale is no null pointer, else
// float; out: [rows, heads, width]; absmax: of out, NaN if it holds NaN; largest and total, [rows, heads]: of the
// softmax. The CPU does without the number of edges.
GQC_KERNEL(gat)(int64_t threads, int64_t is_int64, int64_t rows, int64_t /*edges*/, const void* indptr,
                const void* indices, const void* eids, const float* el, const float* er, const void* u,
                const float* u_scale, int64_t heads, int64_t width, float slope, const int64_t* seed, int64_t node,
                int64_t threshold, float factor, float* out, float* absmax, float* largest, float* total) {
    return with_index(is_int64, [&](auto index) -> Error {
        using Index = decltype(index);
        const Neighbours<Index> in{{static_cast<const Index*>(indptr), rows},
                                   static_cast<const Index*>(indices),
                                   static_cast<const Index*>(eids)};
        const AttentionDropout dropout{seed, node, static_cast<uint32_t>(threshold), factor};
        const HeadSums sums(heads, width);
        if (!sums.ok()) return kOutOfMemory;
        int32_t seen = 0;
        const auto run = [&](auto* features) {
            using T = std::remove_const_t<std::remove_pointer_t<decltype(features)>>;
            const Gat<T, Index> job{in,  el,      er,    features, u_scale ? *u_scale : 1.0f, slope, dropout, sums,
                                    out, largest, total, &seen};
            return for_split_rows<GatWorker<T, Index>>(threads, in.rows, heads * (width + 16), job);
        };
        const Error error = u_scale ? run(static_cast<const int8_t*>(u)) : run(static_cast<const float*>(u));
        *absmax = float_of(static_cast<uint32_t>(seen));
        return error;
    });
}

}  // namespace gqc::GQC_ISA
