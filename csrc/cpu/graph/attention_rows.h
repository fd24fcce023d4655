// What both directions of an edge phase do with the values of one node's edges, one an edge and head. None depends on
// the types of features and indices, so that each is compiled once.
#pragma once

#include "common/kernel.h"
#include "cpu/graph/attention.h"
#include "cpu/graph/heads.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Logits as they are read: leaky_relu(logits + of_node), `of_node` the number of each head of the node, 0 where null.
struct LogitsOf {
    const float* logits;
    const float* of_node;
    float slope;
    int64_t values;
};

template <int Known>
void set_or_clear(PerHead<Known>& heads, const float* values) {
    if (values) {
        heads.set(values);
    } else {
        heads.fill(0.0f);
    }
}

// weights = exp(logit - largest), times `kept` where that is not null; the largest logit and the sum of exponentials of
// each head. Takes 3 slots.
template <int Known>
__attribute__((noinline)) void softmax_of_row(const HeadScratch& scratch, const LogitsOf& of, const float* kept,
                                              float* weights, float* largest, float* total) {
    PerHead<Known> added(scratch, 0), most(scratch, 1), sum(scratch, 2);
    set_or_clear(added, of.of_node);
    most.fill(kLowest);  // not -Inf: a head whose logits are all -Inf in this part may have others
    for_vectors<Known>(scratch, of.values, [&](int64_t n, int64_t m, auto lanes) {
        const Floats x = lanes.or_else(leaky(at(of.logits + n) + added[m], of.slope), -__builtin_inff());
        put(weights + n, x);
        most.combine(m, x, Larger());
    });
    most.reduce(Larger());
    sum.fill(0.0f);
    for_vectors<Known>(scratch, of.values, [&](int64_t n, int64_t m, auto) {
        const Floats x = exp_of_negative<kWidest>(at(weights + n) - most[m]);
        sum.combine(m, x, Add());
        put(weights + n, kept ? x * at(kept + n) : x);
    });
    sum.reduce(Add());
    most.store(largest);
    sum.store(total);
}

// Brings the softmax of some edges to a common largest logit with that of others, given by the same two values a head:
// what was weighed with the one is multiplied with `of_these` then, the rest with `of_others`.
inline void join_softmax(int64_t heads, float* largest, float* total, const float* largest_of_others,
                         const float* total_of_others, float* of_these, float* of_others) {
    for (int64_t h = 0; h < heads; ++h) {
        const float here = largest_of_others[h], most = larger(here, largest[h]);
        of_these[h] = exp_of_negative<1>(largest[h] - most);
        of_others[h] = exp_of_negative<1>(here - most);
        largest[h] = most;
        total[h] = total[h] * of_these[h] + total_of_others[h] * of_others[h];
    }
}

// The sums over edges of a * d, a * s and a * d * s, each for all heads, where a is the attention before it is divided
// by its sum, d its gradient and s the slope of the leaky ReLU. Where `weights` is not null they become a and
// `gradients` a * d. Takes 5 slots.
template <int Known>
__attribute__((noinline)) void sums_of_row(const HeadScratch& scratch, const LogitsOf& of, const float* largest_logit,
                                           const float* kept, float* gradients, float* weights, float* sums) {
    PerHead<Known> added(scratch, 0), largest(scratch, 1);
    PerHead<Known> products(scratch, 2), slopes(scratch, 3), sloped_products(scratch, 4);
    set_or_clear(added, of.of_node);
    largest.set(largest_logit);
    products.fill(0.0f), slopes.fill(0.0f), sloped_products.fill(0.0f);
    for_vectors<Known>(scratch, of.values, [&](int64_t n, int64_t m, auto lanes) {
        const Floats logit = at(of.logits + n) + added[m];
        const Floats a = lanes.or_else(exp_of_negative<kWidest>(leaky(logit, of.slope) - largest[m]), 0.0f);
        const Floats gradient = kept ? at(gradients + n) * at(kept + n) : at(gradients + n);
        const Floats product = lanes.or_else(a * gradient, 0.0f);
        products.combine(m, product, Add());
        slopes.combine(m, leaky_gradient(logit, a, of.slope), Add());
        sloped_products.combine(m, leaky_gradient(logit, product, of.slope), Add());
        if (weights) lanes.put_first(gradients + n, product), lanes.put_first(weights + n, a);
    });
    products.reduce(Add()), slopes.reduce(Add()), sloped_products.reduce(Add());
    const int64_t heads = scratch.heads;
    products.store(sums), slopes.store(sums + heads), sloped_products.store(sums + 2 * heads);
}

// gradients = (gradients - weights * subtracted) * inverse, of what sums_of_row left. Takes 2 slots.
template <int Known>
__attribute__((noinline)) void logit_gradients_of_row(const HeadScratch& scratch, int64_t values, const float* weights,
                                                      const float* inverse_of, const float* subtracted_of,
                                                      float* gradients) {
    PerHead<Known> inverse(scratch, 0), subtracted(scratch, 1);
    inverse.set(inverse_of);
    subtracted.set(subtracted_of);
    for_vectors<Known>(scratch, values, [&](int64_t n, int64_t m, auto lanes) {
        lanes.put_first(gradients + n, (at(gradients + n) - at(weights + n) * subtracted[m]) * inverse[m]);
    });
}

// What a source's edges read of their destinations' softmax, an edge and head each.
struct OfDestinations {
    const float *largest, *inverse, *subtracted;
};

// weights = the attention that features were summed with, and the sum of the gradients of the logits of each head.
// With `keep` these gradients take the place of those of the attention. Takes 2 slots.
template <int Known>
__attribute__((noinline)) void weigh_row(const HeadScratch& scratch, const LogitsOf& of, const OfDestinations& softmax,
                                         const float* kept, bool keep, float* gradients, float* weights, float* sums) {
    PerHead<Known> added(scratch, 0), sum(scratch, 1);
    set_or_clear(added, of.of_node);
    sum.fill(0.0f);
    for_vectors<Known>(scratch, of.values, [&](int64_t n, int64_t m, auto lanes) {
        const Floats logit = added[m] + at(of.logits + n);
        const Floats a =
            exp_of_negative<kWidest>(leaky(logit, of.slope) - at(softmax.largest + n)) * at(softmax.inverse + n);
        Floats gradient = at(gradients + n), weight = a;
        if (kept) gradient *= at(kept + n), weight *= at(kept + n);
        put(weights + n, weight);
        const Floats of_logit = leaky_gradient(logit, a * (gradient - at(softmax.subtracted + n)), of.slope);
        sum.combine(m, lanes.or_else(of_logit, 0.0f), Add());
        if (keep) lanes.put_first(gradients + n, of_logit);
    });
    sum.reduce(Add());
    sum.store(sums);
}

}  // namespace gqc::GQC_ISA
