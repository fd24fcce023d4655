// SPMM with max or min: the largest or smallest row that the entries of a row read, feature by feature, whose it was,
// and where its gradient goes.

#include "cuda/rows.cuh"
#include "cuda/scalar.cuh"

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // neighbours that a group of lanes reads at a time

// Values of float or int8, which is compared as int.
__device__ __forceinline__ float comparable(float x) {
    return x;
}
__device__ __forceinline__ int comparable(int8_t x) {
    return x;
}
__device__ __forceinline__ void load_four(const float* from, float (&value)[4]) {
    const float4 four = global_load<float4>(from);
    value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
}
__device__ __forceinline__ void load_four(const int8_t* from, int (&value)[4]) {
    const uint32_t four = global_load<uint32_t>(from);
#pragma unroll
    for (int k = 0; k < 4; ++k) value[k] = static_cast<int>(four << (24 - 8 * k)) >> 24;
}

// A value and the entry it is of, -1 for none. Of two, that of the later entry wins where it is not smaller, and NaN
// wins over every number. The smallest value is the largest of the negated ones.
template <typename Value>
struct Best {
    Value value;
    int entry;

    __device__ __forceinline__ bool loses_to_later(Value x) const { return x >= value || x != x; }
    __device__ __forceinline__ void meet(const Best& other) {
        const bool replaced = other.entry > entry ? loses_to_later(other.value) : !other.loses_to_later(value);
        value = replaced ? other.value : value;
        entry = replaced ? other.entry : entry;
    }
};

__device__ __forceinline__ Best<float> nothing(float) {
    return {__uint_as_float(0xff800000u), -1};
}
__device__ __forceinline__ Best<int> nothing(int) {
    return {-128, -1};
}

// As sum_over_groups().
template <int Left, int Distance, typename Value, int V>
__device__ __forceinline__ int best_over_groups(Best<Value> (&best)[V], int lanes) {
    int first = 0;
    if constexpr (Distance > 0) {
        if (Distance < lanes) return 0;
        constexpr int kHalf = Left > 1 ? Left / 2 : 1;
        const bool upper = Left > 1 && (lane_id() & Distance);
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            Best<Value> given = best[i], kept = best[i];
            if constexpr (Left > 1) {
                given = upper ? best[i] : best[i + kHalf];
                kept = upper ? best[i + kHalf] : best[i];
            }
            const Best<Value> other{__shfl_xor_sync(kAllLanes, given.value, Distance),
                                    __shfl_xor_sync(kAllLanes, given.entry, Distance)};
            kept.meet(other);
            best[i] = kept;
        }
        first = (upper ? kHalf : 0) + best_over_groups<kHalf, Distance / 2>(best, lanes);
    }
    return first;
}

// Writes what was found for a row.
struct Winners {
    const void* eids;
    int is_int64, is_max, width;
    float scale;
    float* out;
    int64_t* arg;

    template <typename Value>
    __device__ __forceinline__ void put(int row, int feature, const Best<Value>& best) const {
        const int64_t at = static_cast<int64_t>(row) * width + feature;
        const bool found = best.entry >= 0;
        const Value value = found ? (is_max ? best.value : -best.value) : 0;
        out[at] = __fmul_rn(static_cast<float>(value), scale);
        arg[at] = found ? static_cast<int64_t>(index_at(eids, best.entry, is_int64)) : -1;
    }
};

template <typename T>
class BestOfNeighbours {
    static constexpr int V = 4;  // features of a lane: side by side, or `lanes` apart where memory is not aligned

  public:
    using Value = decltype(comparable(T()));

    __device__ __forceinline__ BestOfNeighbours(const T* x, const void* x_rows, int entries, int lanes,
                                                bool side_by_side, int first_feature, Value* values, int* positions,
                                                const Winners& winners)
        : winners_(winners),
          x_(x),
          x_rows_(x_rows),
          entries_(entries),
          lanes_(lanes),
          groups_(kWarp / lanes),
          group_(lane_id() / lanes),
          count_(max(V * lanes / kWarp, 1)),
          side_by_side_(side_by_side),
          stride_(side_by_side ? 1 : lanes),
          feature_(first_feature + lane_id() % lanes * (side_by_side ? V : 1)),
          values_(values),
          positions_(positions) {}

    __device__ __forceinline__ void look_ahead(int first) {
        indices_from(x_rows_, first + group_ * kBatch, entries_, winners_.is_int64, row_);
    }

    __device__ __forceinline__ void add(int, int first, int last) {
#pragma unroll
        for (int k = 0; k < V; ++k) best_[k] = nothing(Value());
        while (first < last) {
            Value value[kBatch][V];
            const int begin = first + group_ * kBatch, mine = last - begin;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (j < mine) load(row_[j], value[j]);
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (j >= mine) continue;
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const Value x = winners_.is_max ? value[j][k] : -value[j][k];
                    const bool wins = best_[k].loses_to_later(x);
                    best_[k].value = wins ? x : best_[k].value;
                    best_[k].entry = wins ? begin + j : best_[k].entry;
                }
            }
            first = min(first + kBatch * groups_, last);
            look_ahead(first);
        }
        held_ = best_over_groups<V, kWarp / 2>(best_, lanes_);
    }

    __device__ __forceinline__ void finish(int row) {
        for_features([&](int feature, const Best<Value>& best) { winners_.put(row, feature, best); });
    }

    __device__ __forceinline__ void keep(int slot) {
        for_features([&](int feature, const Best<Value>& best) {
            const int64_t at = static_cast<int64_t>(slot) * winners_.width + feature;
            values_[at] = best.value;
            positions_[at] = best.entry;
        });
    }

  private:
    // Features behind the last one are those of other memory or 0; they are not written.
    __device__ __forceinline__ void load(uint32_t row, Value (&value)[V]) const {
        const T* const from = x_ + static_cast<uint64_t>(row) * static_cast<uint32_t>(winners_.width) + feature_;
        if (side_by_side_ && feature_ < winners_.width) return load_four(from, value);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const bool here = feature_ + k * stride_ < winners_.width;
            value[k] = here ? comparable(from[k * stride_]) : 0;
        }
    }

    template <typename Body>
    __device__ __forceinline__ void for_features(const Body& body) const {
        if (!holds_sums_first<V>(lanes_)) return;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const int feature = feature_ + (held_ + i) * stride_;
            if (i < count_ && feature < winners_.width) body(feature, best_[i]);
        }
    }

    const Winners winners_;
    const T* const x_;
    const void* const x_rows_;
    const int entries_, lanes_, groups_, group_, count_;
    const bool side_by_side_;
    const int stride_, feature_;
    Value* const values_;
    int* const positions_;
    uint32_t row_[kBatch];
    Best<Value> best_[V];
    int held_;  // best_[0] is of the lane's feature held_
};

template <typename Value>
struct JoinBest {
    using Piece = Best<Value>;
    const Value* values;
    const int* positions;
    Winners winners;

    __device__ __forceinline__ Piece nothing() const { return ::nothing(Value()); }
    __device__ __forceinline__ Piece load(int slot, int feature) const {
        const int64_t at = static_cast<int64_t>(slot) * winners.width + feature;
        return {values[at], positions[at]};
    }
    __device__ __forceinline__ void add(Piece& best, const Piece& piece) const { best.meet(piece); }
    __device__ __forceinline__ void finish(int row, int feature, const Piece& best) const {
        winners.put(row, feature, best);
    }
};

// out[v] = max (or min) over the entries p of row v of x[x_rows[p]], arg[v] = eids[p] of the best one; 0 and -1 for an
// empty row. A warp works on a share (rows.cuh) in groups of `lanes` lanes, block (i, j) on 4 shares and features from
// 4 * j * lanes on.
//     x               rows of `width` values, aligned to four values where side_by_side is set
//     scale           of int8 values, or null
//     values, positions [2 * count * width], cut_rows [count]     for join_spmm_cmp
#define GQC_SPMM_CMP(name, T, Value)                                                                                \
    GQC_GLOBAL(kShareThreads, 8)                                                                                    \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,          \
         int64_t is_max, const void* eids, const float* scale, int64_t width, float* out, int64_t* arg, const T* x, \
         const void* x_rows, int64_t lanes, int64_t side_by_side, Value* values, int* positions, int* cut_rows) {   \
        const Winners winners{eids,                                                                                 \
                              static_cast<int>(is_int64),                                                           \
                              static_cast<int>(is_max),                                                             \
                              static_cast<int>(width),                                                              \
                              scale ? *scale : 1.0f,                                                                \
                              out,                                                                                  \
                              arg};                                                                                 \
        BestOfNeighbours<T> best(x, x_rows, static_cast<int>(entries), static_cast<int>(lanes), side_by_side != 0,  \
                                 static_cast<int>(4 * lanes * blockIdx.y), values, positions, winners);             \
        sum_share(Shares(indptr, is_int64, rows, entries, cost), count, best, cut_rows);                            \
    }                                                                                                               \
    GQC_EXPORT(name)

GQC_SPMM_CMP(spmm_cmp_f32, float, float)
GQC_SPMM_CMP(spmm_cmp_int8, int8_t, int)

// Puts together the rows that were cut.
#define GQC_JOIN_SPMM_CMP(name, Value)                                                                             \
    GQC_GLOBAL(kJoinThreads)                                                                                       \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,         \
         int64_t is_max, const void* eids, const float* scale, int64_t width, float* out, int64_t* arg,            \
         const Value* values, const int* positions, const int* cut_rows) {                                         \
        GQC_SHARED(Best<Value>, scratch, kJoinThreads);                                                            \
        JoinBest<Value> join{values,                                                                               \
                             positions,                                                                            \
                             {eids, static_cast<int>(is_int64), static_cast<int>(is_max), static_cast<int>(width), \
                              scale ? *scale : 1.0f, out, arg}};                                                   \
        join_cut_rows(Shares(indptr, is_int64, rows, entries, cost), count, cut_rows, width, join, scratch);       \
    }                                                                                                              \
    GQC_EXPORT(name)

GQC_JOIN_SPMM_CMP(join_spmm_cmp_f32, float)
GQC_JOIN_SPMM_CMP(join_spmm_cmp_int8, int)

GQC_GLOBAL(kThreads) fill_zero(float* out, int64_t count) {
    for (int64_t i = grid_thread(); i < count / 4; i += grid_threads())
        global_store(out + 4 * i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    if (grid_thread() < count % 4) out[count / 4 * 4 + grid_thread()] = 0.0f;
}
GQC_EXPORT(fill_zero)

// Calls body(i, feature) for the elements i of a [rows, width] tensor that are the thread's.
template <typename Body>
__device__ __forceinline__ void for_elements(int64_t rows, int64_t width, const Body& body) {
    const int64_t step = grid_threads() % width;
    int64_t feature = grid_thread() % width;
    for (int64_t i = grid_thread(); i < rows * width; i += grid_threads()) {
        body(i, feature);
        feature += step;
        if (feature >= width) feature -= width;
    }
}

// out[arg[v, f], f] = grad[v, f]; out is 0 on entry. An edge has one destination, so no two write the same element.
GQC_GLOBAL(kThreads)
spmm_cmp_bwd(int64_t rows, const int64_t* arg, const float* grad, int64_t width, float* out) {
    for_elements(rows, width, [&](int64_t i, int64_t feature) {
        if (arg[i] >= 0) out[arg[i] * width + feature] = grad[i];
    });
}
GQC_EXPORT(spmm_cmp_bwd)

// out[src[arg[v, f]], f] = sum of grad[v, f]; out is 0 on entry. What several rows give to one source is added in any
// order.
GQC_GLOBAL(kThreads)
spmm_cmp_bwd_src(int64_t is_int64, int64_t rows, const void* src, const int64_t* arg, const float* grad, int64_t width,
                 float* out) {
    for_elements(rows, width, [&](int64_t i, int64_t feature) {
        if (arg[i] < 0) return;
        const int64_t source = index_at(src, arg[i], static_cast<int>(is_int64));
        atomicAdd(out + source * width + feature, grad[i]);
    });
}
GQC_EXPORT(spmm_cmp_bwd_src)
