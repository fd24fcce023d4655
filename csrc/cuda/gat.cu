// GAT's edge phase in one pass over the edges: logits, their softmax over the in-edges of a node, dropout, and the sum
// of the neighbours' features with these weights.
//
// The largest logit of a row is not known before its last edge, so sums are of exp(logit - largest so far) and are
// scaled down when a larger logit comes. Each group of lanes has its own such sums, and so has each piece of a cut row;
// they are joined in an order that does not depend on which was ready first.

#include "cuda/gat.cuh"

// What a sum of exp(x - from) is multiplied by to be one of exp(x - to).
__device__ __forceinline__ float rescale(float from, float to) {
    return from == to ? 1.0f : expf(from - to);
}

// What the softmax keeps of a head's edges.
struct Softmax {
    float largest, total;  // the largest logit, the sum of exp(logit - largest)
};
__device__ __forceinline__ Softmax no_edges() {
    return {-infinity(), 0.0f};
}

// Where the results of rows go. A row without edges has the maximum and the sum 0, and sums of nothing.
struct Attended {
    const float* scale;  // of the features, or null
    float keep_scale;
    int heads;
    float* out;
    float* largest;
    float* total;
    uint32_t seen;

    // What sums of features are multiplied with.
    __device__ __forceinline__ float factor(const Softmax& softmax, bool is_empty) const {
        const float of_features = scale ? *scale : 1.0f;
        return is_empty ? of_features : of_features * keep_scale / softmax.total;
    }
    __device__ __forceinline__ void put(int row, int head, const Softmax& softmax, bool is_empty) const {
        const int64_t at = static_cast<int64_t>(row) * heads + head;
        largest[at] = is_empty ? 0.0f : softmax.largest;
        total[at] = softmax.total;
    }
};

template <typename Load>
class AttentionSum {
    using Raw = typename Load::Raw;
    static constexpr int V = Load::kValues;

  public:
    __device__ __forceinline__ AttentionSum(const Heads& of, const Edges& edges, const FeatureRows<Load>& u,
                                            const Tile<V>& tile, const float* el, const float* er, float slope,
                                            const Dropout& dropout, float* pieces, Softmax* softmax_pieces,
                                            const Attended& results)
        : results(results),
          of_(of),
          edges_(edges),
          u_(u),
          tile_(tile),
          el_(el, of, tile),
          er_(er),
          slope_(slope),
          dropout_(dropout),
          pieces_(pieces),
          softmax_pieces_(softmax_pieces),
          count_(max(V * tile.lanes / kWarp, 1)) {}

    __device__ __forceinline__ void look_ahead(int first) { edges_.read(first + tile_.group * kBatch); }

    __device__ __forceinline__ void add(int row, int first, int last) {
        softmax_ = no_edges();
        is_empty_ = first == last;
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] = 0.0f;
        const float of_row = er_[of_.at(static_cast<uint32_t>(row), tile_.head)];
        while (first < last) {
            const uint32_t kept = dropout_.seed ? dropout_.kept(edges_.eid, of_, tile_) : ~0u;
            Raw raw[kBatch];
            float logit[kBatch], weight[kBatch];
            const int mine = tile_.features > 0 ? last - first - tile_.group * kBatch : 0;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const uint32_t source = edges_.neighbour[j];
                raw[j] = j < mine ? u_.load(source) : Load::nothing();
                logit[j] = j < mine ? el_.load(source) : 0.0f;
            }
            first = min(first + kBatch * tile_.groups, last);
            look_ahead(first);

            float largest = softmax_.largest;  // a NaN is not seen by it, but makes the sum NaN
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                logit[j] = j < mine ? leaky_relu(logit[j] + of_row, slope_) : -infinity();
                largest = fmaxf(largest, logit[j]);
            }
            if (largest > softmax_.largest) rescale_sums(largest);
            const float origin = largest == -infinity() ? 0.0f : largest;  // so that what is masked gives 0, not NaN
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const float x = expf(logit[j] - origin);
                softmax_.total += x;
                weight[j] = x * factor_if_kept(kept, j);
            }
            FloatSum<Load>::add(raw, weight, sum_);
        }
        join_groups();
    }

    __device__ __forceinline__ void finish(int row) {
        if (tile_.is_first && tile_.part == 0 && tile_.group == 0) {
            results.put(row, tile_.head, softmax_, is_empty_);
        }
        if (!writes()) return;
        const float factor = results.factor(softmax_, is_empty_);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            sum_[i] *= factor;
            if (i < count_) results.seen = larger(results.seen, magnitude(sum_[i]));
        }
        put(results.out, row);
    }

    __device__ __forceinline__ void keep(int slot) {
        if (tile_.is_first && tile_.part == 0 && tile_.group == 0) {
            softmax_pieces_[of_.at(static_cast<uint32_t>(slot), tile_.head)] = softmax_;
        }
        if (writes()) put(pieces_, slot);
    }

    Attended results;

  private:
    __device__ __forceinline__ void rescale_sums(float largest) {
        const float factor = rescale(softmax_.largest, largest);
        softmax_ = {largest, softmax_.total * factor};
#pragma unroll
        for (int i = 0; i < V; ++i) sum_[i] *= factor;
    }

    __device__ __forceinline__ void join_groups() {
        float largest = softmax_.largest;
#pragma unroll 1
        for (int distance = kWarp / 2; distance >= tile_.lanes; distance /= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
        }
        rescale_sums(largest);
#pragma unroll 1
        for (int distance = kWarp / 2; distance >= tile_.lanes; distance /= 2) {
            softmax_.total += __shfl_xor_sync(kAllLanes, softmax_.total, distance);
        }
        added_ = sum_over_groups(sum_, tile_.lanes);
    }

    __device__ __forceinline__ bool writes() const { return tile_.features > 0 && holds_sums_first<V>(tile_.lanes); }

    __device__ __forceinline__ void put(float* rows, int row) const {
        put_features<Load>(rows + row * of_.row_width() + tile_.feature + added_, sum_, count_,
                           tile_.features - added_);
    }

    const Heads of_;
    Edges edges_;
    const FeatureRows<Load> u_;
    const Tile<V> tile_;
    const NodeNumbers<float> el_;
    const float* const er_;
    const float slope_;
    const Dropout dropout_;
    float* const pieces_;
    Softmax* const softmax_pieces_;
    const int count_;  // sums that are left to a lane at a row's end; sum_[0] is of its feature added_
    Softmax softmax_;
    float sum_[V];
    int added_;
    bool is_empty_;
};

// out[v, h] = sum over the in-edges e of v of dropout(softmax(leaky_relu(el[src, h] + er[v, h]))) * u[src, h], for each
// head h of `width` features, and the maximum and the sum of the softmax. A warp works on a share (rows.cuh) of the
// rows, groups of `lanes` lanes as Heads says, block (i, j) on 4 shares and tile j.
//     u                 int8 with u_scale, else float32; on as many bytes as a lane reads at a time
//     u_scale           null for float32
//     seed              null without dropout; else the weight of edge e and head h is kept where element e * heads + h
//                       of the stream is at least `threshold`
//     keep_scale        by which kept weights are multiplied
//     random_blocks     at most so many blocks of the stream hold the elements of an edge and a tile's heads
//     pieces            [2 * count, heads * width], softmax_pieces [2 * count, heads], cut_rows [count]: for gat_join
//     absmax            raised to the largest magnitude in out
#define GQC_GAT(name, Load, resident)                                                                               \
    GQC_GLOBAL(kShareThreads, resident)                                                                             \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,          \
         int64_t heads, int64_t width, int64_t lanes, int64_t heads_of_tile, int64_t parts, int64_t chunks_of_part, \
         const int64_t* seed, int64_t node, int64_t threshold, int64_t random_blocks, const void* neighbours,       \
         const void* eids, const float* el, const float* er, float slope, const void* u, const float* u_scale,      \
         float keep_scale, float* pieces, void* softmax_pieces, int* cut_rows, float* out, float* largest,          \
         float* total, float* absmax) {                                                                             \
        GQC_SHARED(uint32_t, scratch, kWarp);                                                                       \
        const Heads of(heads, width, lanes, heads_of_tile, parts, chunks_of_part);                                  \
        const Tile<Load::kValues> tile(of);                                                                         \
        const Dropout dropout(seed, node, threshold, random_blocks);                                                \
        AttentionSum<Load> sum(of, {neighbours, eids, is_int64, entries, seed != nullptr},                          \
                               {u, u_scale != nullptr, of, tile}, tile, el, er, slope, dropout, pieces,             \
                               static_cast<Softmax*>(softmax_pieces),                                               \
                               {u_scale, keep_scale, of.heads, out, largest, total, 0});                            \
        sum_share(Shares(indptr, is_int64, rows, entries, cost), count, sum, cut_rows);                             \
        raise_absmax(absmax, sum.results.seen, scratch);                                                            \
    }                                                                                                               \
    GQC_EXPORT(name)

GQC_GAT(gat_int8x16, WholeInt8x16, 5)
GQC_GAT(gat_int8x4, WholeInt8x4, 5)
GQC_GAT(gat_f32x4, WholeFloat32x4, 5)
GQC_GAT(gat_any, AnyX4, 5)

struct JoinAttention {
    struct Piece {
        Softmax softmax;
        float sum;
    };
    const float* pieces;
    const Softmax* softmax_pieces;
    int width;
    Attended results;

    __device__ __forceinline__ Piece nothing() const { return {no_edges(), 0.0f}; }
    __device__ __forceinline__ Piece load(int slot, int feature) const {
        const int64_t at = slot * static_cast<int64_t>(results.heads);
        return {softmax_pieces[at + feature / width], pieces[at * width + feature]};
    }
    __device__ __forceinline__ void add(Piece& a, const Piece& b) const {
        const float largest = fmaxf(a.softmax.largest, b.softmax.largest);
        const float of_a = rescale(a.softmax.largest, largest), of_b = rescale(b.softmax.largest, largest);
        a.softmax = {largest, a.softmax.total * of_a + b.softmax.total * of_b};
        a.sum = a.sum * of_a + b.sum * of_b;
    }
    __device__ __forceinline__ void finish(int row, int feature, const Piece& piece) {
        const float value = piece.sum * results.factor(piece.softmax, false);
        results.seen = larger(results.seen, magnitude(value));
        results.out[row * static_cast<int64_t>(results.heads) * width + feature] = value;
        if (feature % width == 0) results.put(row, feature / width, piece.softmax, false);
    }
};

// Puts together what the kernels above left of cut rows.
GQC_GLOBAL(kJoinThreads)
gat_join(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,
         int64_t heads, int64_t width, float keep_scale, const float* u_scale, const float* pieces,
         const void* softmax_pieces, const int* cut_rows, float* out, float* largest, float* total, float* absmax) {
    GQC_SHARED(JoinAttention::Piece, joined, kJoinThreads);
    GQC_SHARED(uint32_t, scratch, kWarp);
    JoinAttention join{pieces,
                       static_cast<const Softmax*>(softmax_pieces),
                       static_cast<int>(width),
                       {u_scale, keep_scale, static_cast<int>(heads), out, largest, total, 0}};
    join_cut_rows(Shares(indptr, is_int64, rows, entries, cost), count, cut_rows, heads * width, join, joined);
    raise_absmax(absmax, join.results.seen, scratch);
}
GQC_EXPORT(gat_join)
