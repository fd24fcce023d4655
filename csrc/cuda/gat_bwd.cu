// The gradients of GAT's edge phase, in two passes over the edges. With the weight a and the logit's slope s of an
// edge, and t = its dropout factor * <u[src], grad[dst]>, the gradient of its weight:
//
//     by destination:  d_er = sum of a * s * t - (sum of a * t) * (sum of a * s)
//     by source:       d_u = sum of a * dropout factor * grad[dst]
//                      d_el = sum of a * s * t - sum of a * s * (sum of a * t over the in-edges of dst)
//
// Products <u, grad> are summed over the features of a head at the end of a row only: a lane multiplies what its own
// features give of them with the edge's weight. The sum of a * t that the source pass reads is that of the same
// quantized values, so the gradients of a row's logits add up to 0.

#include "cuda/gat.cuh"

// What the weight of an edge is computed from at its destination, and what its gradient is compared with.
struct Destination {
    float er, largest, inverse_total;
    float mean;  // of the gradients of the weights: the sum of a * t
};
static_assert(sizeof(Destination) == sizeof(float4), "one vector");

// A lane's sums for its head at a destination.
struct HeadSums {
    float sloped_gradients, slopes, gradients;  // a * s * t, a * s, a * t
};

template <typename Load>
class DestinationSum {
    using Raw = typename Load::Raw;
    static constexpr int V = Load::kValues;

  public:
    __device__ __forceinline__ DestinationSum(const Heads& of, const Edges& edges, const FeatureRows<Load>& u,
                                              const FeatureRows<Load>& grad, const Tile<V>& tile, const float* el,
                                              const float* er, const float* largest, const float* total, float slope,
                                              const Dropout& dropout, float4* sums, float4* pieces)
        : of_(of),
          edges_(edges),
          u_(u),
          grad_(grad),
          tile_(tile),
          el_(el, of, tile),
          er_(er),
          largest_(largest),
          total_(total),
          slope_(slope),
          dropout_(dropout),
          sums_(sums),
          pieces_(pieces) {}

    __device__ __forceinline__ void look_ahead(int first) { edges_.read(first + tile_.group * kBatch); }

    __device__ __forceinline__ void add(int row, int first, int last) {
        HeadSums sum{0.0f, 0.0f, 0.0f};
        const uint64_t at = of_.at(static_cast<uint32_t>(row), tile_.head);
        const float of_row = er_[at], largest = largest_[at], inverse_total = 1.0f / total_[at];
        const Raw grad = tile_.features > 0 ? grad_.load(static_cast<uint32_t>(row)) : Load::nothing();
        while (first < last) {
            const uint32_t kept = dropout_.seed ? dropout_.kept(edges_.eid, of_, tile_) : ~0u;
            Raw u[kBatch];
            float of_source[kBatch];
            const int mine = tile_.features > 0 ? last - first - tile_.group * kBatch : 0;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const uint32_t source = edges_.neighbour[j];
                u[j] = j < mine ? u_.load(source) : Load::nothing();
                of_source[j] = j < mine ? el_.load(source) : 0.0f;
            }
            first = min(first + kBatch * tile_.groups, last);
            look_ahead(first);
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const float x = of_source[j] + of_row, slope = x > 0.0f ? 1.0f : slope_;
                const float logit = j < mine ? __fmul_rn(x, slope) : -infinity();
                const float weight = expf(logit - largest) * inverse_total;
                const float gradient = weight * factor_if_kept(kept, j) * dot(u[j], grad);
                sum.gradients += gradient;
                sum.sloped_gradients = __fmaf_rn(gradient, slope, sum.sloped_gradients);
                sum.slopes = __fmaf_rn(weight, slope, sum.slopes);
            }
        }
        if (!tile_.is_first || tile_.part) sum.slopes = 0.0f;  // all lanes of a head have summed them
        sum_ = {tile_.sum_of_head(sum.sloped_gradients), tile_.sum_of_head(sum.slopes),
                tile_.sum_of_head(sum.gradients)};
    }

    __device__ __forceinline__ void finish(int row) const { put(sums_, row); }
    __device__ __forceinline__ void keep(int slot) const { put(pieces_, slot); }

  private:
    __device__ __forceinline__ void put(float4* rows, int row) const {
        if (!tile_.is_first || tile_.group) return;
        global_store<float4>(rows + of_.at(static_cast<uint32_t>(row), tile_.head) * of_.parts + tile_.part,
                             make_float4(sum_.sloped_gradients, sum_.slopes, sum_.gradients, 0.0f));
    }

    const Heads of_;
    Edges edges_;
    const FeatureRows<Load> u_, grad_;
    const Tile<V> tile_;
    const NodeNumbers<float> el_;
    const float* const er_;
    const float* const largest_;
    const float* const total_;
    const float slope_;
    const Dropout dropout_;
    float4* const sums_;
    float4* const pieces_;
    HeadSums sum_;
};

// What the kernels of both passes begin with; see gat.cu.
#define GQC_GAT_ROWS                                                                                                 \
    const void *indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count, int64_t heads, \
        int64_t width, int64_t lanes, int64_t heads_of_tile, int64_t parts, int64_t chunks_of_part,                  \
        const int64_t *seed, int64_t node, int64_t threshold, int64_t random_blocks, const void *neighbours,         \
        const void *eids, float slope, const void *u, const float *u_scale, const void *grad, const float *grad_scale

// For each row and part of a head a float4 (HeadSums and 0) in `sums`, which gat_bwd_destinations joins and multiplies
// by scales. pieces: [2 * count] such rows, for join_sums_f32.
#define GQC_GAT_BY_DESTINATION(name, Load, resident)                                                                   \
    GQC_GLOBAL(kShareThreads, resident)                                                                                \
    name(GQC_GAT_ROWS, const float* el, const float* er, const float* largest, const float* total, void* sums,         \
         void* pieces, int* cut_rows) {                                                                                \
        const Heads of(heads, width, lanes, heads_of_tile, parts, chunks_of_part);                                     \
        const Tile<Load::kValues> tile(of);                                                                            \
        DestinationSum<Load> sum(of, {neighbours, eids, is_int64, entries, seed != nullptr},                           \
                                 {u, u_scale != nullptr, of, tile}, {grad, grad_scale != nullptr, of, tile}, tile, el, \
                                 er, largest, total, slope, {seed, node, threshold, random_blocks},                    \
                                 static_cast<float4*>(sums), static_cast<float4*>(pieces));                            \
        sum_share(Shares(indptr, is_int64, rows, entries, cost), count, sum, cut_rows);                                \
    }                                                                                                                  \
    GQC_EXPORT(name)

GQC_GAT_BY_DESTINATION(gat_bwd_dst_int8x16, WholeInt8x16, 5)
GQC_GAT_BY_DESTINATION(gat_bwd_dst_int8x4, WholeInt8x4, 6)
GQC_GAT_BY_DESTINATION(gat_bwd_dst_f32x4, WholeFloat32x4, 5)
GQC_GAT_BY_DESTINATION(gat_bwd_dst_any, AnyX4, 5)

// The product of the scales and the dropout factor, by which products of values become gradients.
__device__ __forceinline__ float gradient_scale(const float* u_scale, const float* grad_scale, float keep_scale) {
    return (u_scale ? *u_scale : 1.0f) * (grad_scale ? *grad_scale : 1.0f) * keep_scale;
}

// For each of `count` destinations and heads, d_er and a Destination from the sums of the parts of the head. Both
// arrays of float4 may be one where heads have one part.
GQC_GLOBAL(256)
gat_bwd_destinations(int64_t count, int64_t parts, const float* er, const float* largest, const float* total,
                     const float* u_scale, const float* grad_scale, float keep_scale, const void* sums,
                     void* destinations, float* d_er) {
    const float scale = gradient_scale(u_scale, grad_scale, keep_scale);
#pragma unroll 1
    for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
        HeadSums sum{0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (int64_t part = 0; part < parts; ++part) {
            const float4 of_part = global_load<float4>(static_cast<const float4*>(sums) + i * parts + part);
            sum.sloped_gradients += of_part.x;
            sum.slopes += of_part.y;
            sum.gradients += of_part.z;
        }
        const bool is_empty = total[i] == 0.0f && sum.slopes == 0.0f;  // of nothing but -inf, the sums are NaN
        d_er[i] = is_empty ? 0.0f : (sum.sloped_gradients - sum.gradients * sum.slopes) * scale;
        global_store<float4>(static_cast<float4*>(destinations) + i,
                             make_float4(er[i], largest[i], 1.0f / total[i], sum.gradients * scale));
    }
}
GQC_EXPORT(gat_bwd_destinations)

template <typename Load>
class SourceSum {
    using Raw = typename Load::Raw;
    static constexpr int V = Load::kValues;

  public:
    __device__ __forceinline__ SourceSum(const Heads& of, const Edges& edges, const FeatureRows<Load>& u,
                                         const FeatureRows<Load>& grad, const Tile<V>& tile, const float* el,
                                         const void* destinations, float slope, const Dropout& dropout,
                                         const float* u_scale, const float* grad_scale, float keep_scale, float* d_u,
                                         float* d_el, float* pieces, float* el_pieces)
        : of_(of),
          edges_(edges),
          u_(u),
          grad_(grad),
          tile_(tile),
          el_(el),
          destinations_(destinations, of, tile),
          slope_(slope),
          dropout_(dropout),
          u_scale_(u_scale),
          grad_scale_(grad_scale),
          keep_scale_(keep_scale),
          d_u_(d_u),
          d_el_(d_el),
          pieces_(pieces),
          el_pieces_(el_pieces),
          count_(max(V * tile.lanes / kWarp, 1)) {}

    __device__ __forceinline__ void look_ahead(int first) { edges_.read(first + tile_.group * kBatch); }

    __device__ __forceinline__ void add(int row, int first, int last) {
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] = 0.0f;
        float gradients = 0.0f, means = 0.0f;
        is_empty_ = first == last;
        const float of_row = el_[of_.at(static_cast<uint32_t>(row), tile_.head)];
        const Raw u = tile_.features > 0 ? u_.load(static_cast<uint32_t>(row)) : Load::nothing();
        while (first < last) {
            const uint32_t kept = dropout_.seed ? dropout_.kept(edges_.eid, of_, tile_) : ~0u;
            Raw grad[kBatch];
            float4 of_destination[kBatch];
            float weight[kBatch];
            const int mine = tile_.features > 0 ? last - first - tile_.group * kBatch : 0;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const uint32_t destination = edges_.neighbour[j];
                grad[j] = j < mine ? grad_.load(destination) : Load::nothing();
                of_destination[j] = j < mine ? destinations_.load(destination) : AnyX4::nothing();
            }
            first = min(first + kBatch * tile_.groups, last);
            look_ahead(first);
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const Destination to{of_destination[j].x, of_destination[j].y, of_destination[j].z,
                                     of_destination[j].w};
                const float x = of_row + to.er, slope = x > 0.0f ? 1.0f : slope_;
                const float logit = j < mine ? __fmul_rn(x, slope) : -infinity();
                const float a = expf(logit - to.largest) * to.inverse_total;
                weight[j] = a * factor_if_kept(kept, j);
                gradients = __fmaf_rn(weight[j] * dot(grad[j], u), slope, gradients);
                means = __fmaf_rn(a * slope, to.mean, means);
            }
            FloatSum<Load>::add(grad, weight, sum_);
        }
        if (!tile_.is_first || tile_.part) means = 0.0f;  // all lanes of a head have summed them
        const float scaled = is_empty_ ? 0.0f : gradients * gradient_scale(u_scale_, grad_scale_, keep_scale_);
        d_el_of_row_ = tile_.sum_of_head(scaled - means);
        added_ = sum_over_groups(sum_, tile_.lanes);
        const float factor = (grad_scale_ ? *grad_scale_ : 1.0f) * keep_scale_;
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] *= factor;
    }

    __device__ __forceinline__ void finish(int row) {
        put_d_el(d_el_, row);
        if (!writes()) return;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i < count_) seen = larger(seen, magnitude(sum_[i]));
        }
        put(d_u_, row);
    }
    __device__ __forceinline__ void keep(int slot) const {
        put_d_el(el_pieces_, slot);
        if (writes()) put(pieces_, slot);
    }

    uint32_t seen = 0;

  private:
    __device__ __forceinline__ bool writes() const { return tile_.features > 0 && holds_sums_first<V>(tile_.lanes); }
    __device__ __forceinline__ void put(float* rows, int row) const {
        put_features<Load>(rows + row * of_.row_width() + tile_.feature + added_, sum_, count_,
                           tile_.features - added_);
    }
    __device__ __forceinline__ void put_d_el(float* rows, int row) const {
        if (!tile_.is_first || tile_.group) return;
        rows[of_.at(static_cast<uint32_t>(row), tile_.head) * of_.parts + tile_.part] = d_el_of_row_;
    }

    const Heads of_;
    Edges edges_;
    const FeatureRows<Load> u_, grad_;
    const Tile<V> tile_;
    const float* const el_;
    const NodeNumbers<float4> destinations_;
    const float slope_;
    const Dropout dropout_;
    const float* const u_scale_;
    const float* const grad_scale_;
    const float keep_scale_;
    float* const d_u_;
    float* const d_el_;
    float* const pieces_;
    float* const el_pieces_;
    const int count_;  // sums that are left to a lane at a row's end; sum_[0] is of its feature added_
    float sum_[V];
    int added_;
    float d_el_of_row_;
    bool is_empty_;
};

// d_u and, for each part of a head, d_el; absmax is raised to the largest magnitude in d_u.
//     pieces    [2 * count, heads * width] and el_pieces [2 * count, heads * parts], for join_sums_f32
#define GQC_GAT_BY_SOURCE(name, Load, resident)                                                                      \
    GQC_GLOBAL(kShareThreads, resident)                                                                              \
    name(GQC_GAT_ROWS, const float* el, const void* destinations, float keep_scale, float* pieces, float* el_pieces, \
         int* cut_rows, float* d_u, float* d_el, float* absmax) {                                                    \
        GQC_SHARED(uint32_t, scratch, kWarp);                                                                        \
        const Heads of(heads, width, lanes, heads_of_tile, parts, chunks_of_part);                                   \
        const Tile<Load::kValues> tile(of);                                                                          \
        SourceSum<Load> sum(of, {neighbours, eids, is_int64, entries, seed != nullptr},                              \
                            {u, u_scale != nullptr, of, tile}, {grad, grad_scale != nullptr, of, tile}, tile, el,    \
                            destinations, slope, {seed, node, threshold, random_blocks}, u_scale, grad_scale,        \
                            keep_scale, d_u, d_el, pieces, el_pieces);                                               \
        sum_share(Shares(indptr, is_int64, rows, entries, cost), count, sum, cut_rows);                              \
        raise_absmax(absmax, sum.seen, scratch);                                                                     \
    }                                                                                                                \
    GQC_EXPORT(name)

GQC_GAT_BY_SOURCE(gat_bwd_src_int8x16, WholeInt8x16, 4)
GQC_GAT_BY_SOURCE(gat_bwd_src_int8x4, WholeInt8x4, 5)
GQC_GAT_BY_SOURCE(gat_bwd_src_f32x4, WholeFloat32x4, 5)
GQC_GAT_BY_SOURCE(gat_bwd_src_any, AnyX4, 5)

// d_el[i], of `count`, is the sum of the parts of its head.
GQC_GLOBAL(256) gat_bwd_join_parts(int64_t count, int64_t parts, const float* of_parts, float* d_el) {
#pragma unroll 1
    for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
        float sum = 0.0f;
#pragma unroll 1
        for (int64_t part = 0; part < parts; ++part) sum += of_parts[i * parts + part];
        d_el[i] = sum;
    }
}
GQC_EXPORT(gat_bwd_join_parts)
