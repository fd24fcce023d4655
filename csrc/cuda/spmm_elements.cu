// SPMM with a sum for every operation, type and broadcast, an element at a time: what spmm.cu leaves. A warp reads
// neighbouring features of a neighbour's row with neighbouring lanes.

#include "cuda/spmm.cuh"

enum Operation { kCopy = 0, kAdd = 1, kMul = 3, kDiv = 4 };  // numbered as in runtime/ops/feature_layout.py
enum ElementType { kFloat32 = 0, kInt8 = 1, kInt4 = 2 };     // kInt4: two a byte, element 2i in the low half of byte i

// A tensor of rows; entry p of the matrix reads row rows[p].
struct Elements {
    const void* data;
    const void* rows;
    ElementType type;
    uint32_t width;

    template <typename T>
    __device__ __forceinline__ T load(uint32_t row, uint32_t at) const {
        if (type == kInt4) {
            const uint64_t byte = static_cast<uint64_t>(row) * ((width + 1) / 2) + at / 2;
            const int pair = static_cast<const int8_t*>(data)[byte];
            return static_cast<T>(at % 2 ? pair >> 4 : static_cast<int>(static_cast<uint32_t>(pair) << 28) >> 28);
        }
        const uint64_t i = static_cast<uint64_t>(row) * width + at;
        return type == kFloat32 ? static_cast<T>(static_cast<const float*>(data)[i])
                                : static_cast<T>(static_cast<const int8_t*>(data)[i]);
    }
};

// A feature of the output is in run feature / length; in run r, element i reads lhs[lhs_offsets[r] + i * lhs_step].
struct Layout {
    int64_t length;
    const int64_t* lhs_offsets;
    const int64_t* rhs_offsets;
    int64_t lhs_step, rhs_step;
};

constexpr int kElements = 2;

template <typename SumType>
class ElementSum {
    static constexpr int V = kElements;  // features of a lane, `lanes` apart from one another

  public:
    using Sum = SumType;

    __device__ __forceinline__ ElementSum(Operation operation, const Elements& lhs, const Elements& rhs,
                                          const Layout& layout, int is_int64, int entries, int width, int lanes,
                                          int first_feature, Sum* pieces, const Output& output)
        : output(output),
          operation_(operation),
          lhs_(lhs),
          rhs_(rhs),
          is_int64_(is_int64),
          entries_(entries),
          width_(width),
          lanes_(lanes),
          groups_(kWarp / lanes),
          group_(lane_id() / lanes),
          count_(max(V * lanes / kWarp, 1)),
          feature_(first_feature + lane_id() % lanes),
          pieces_(pieces) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const int64_t feature = min(feature_ + k * lanes, width - 1);
            const int64_t run = feature / layout.length, i = feature - run * layout.length;
            lhs_at_[k] = static_cast<uint32_t>(layout.lhs_offsets[run] + i * layout.lhs_step);
            rhs_at_[k] = static_cast<uint32_t>(layout.rhs_offsets[run] + i * layout.rhs_step);
        }
    }

    __device__ __forceinline__ void look_ahead(int first) {
        const int entry = first + group_ * kBatch;
        indices_from(lhs_.rows, entry, entries_, is_int64_, lhs_row_);
        if (operation_ != kCopy) indices_from(rhs_.rows, entry, entries_, is_int64_, rhs_row_);
    }

    __device__ __forceinline__ void add(int, int first, int last) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum_[k] = 0;
        while (first < last) {
            Sum lhs[kBatch][V], rhs[kBatch][V];
            const int mine = last - first - group_ * kBatch;
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const bool here = j < mine && feature_ + k * lanes_ < width_;
                    lhs[j][k] = here ? lhs_.load<Sum>(lhs_row_[j], lhs_at_[k]) : 0;
                    rhs[j][k] = here && operation_ != kCopy ? rhs_.load<Sum>(rhs_row_[j], rhs_at_[k]) : 1;
                }
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    if (j < mine) sum_[k] += message(lhs[j][k], rhs[j][k]);
                }
            }
            first = min(first + kBatch * groups_, last);
            look_ahead(first);
        }
        added_ = sum_over_groups(sum_, lanes_);
    }

    __device__ __forceinline__ void finish(int row) {
        const float factor = output.factor(row);
        for_features([&](int64_t feature, Sum sum) {
            output.put(row * static_cast<int64_t>(width_) + feature, output.value(static_cast<float>(sum), factor));
        });
    }

    __device__ __forceinline__ void keep(int slot) {
        for_features([&](int64_t feature, Sum sum) { pieces_[slot * static_cast<int64_t>(width_) + feature] = sum; });
    }

    Output output;

  private:
    __device__ __forceinline__ float message(float lhs, float rhs) const {
        switch (operation_) {
            case kAdd:
                return lhs + rhs;
            case kDiv:
                return lhs / rhs;
            default:
                return lhs * rhs;  // kCopy has 1 for rhs
        }
    }
    __device__ __forceinline__ int message(int lhs, int rhs) const { return lhs * rhs; }

    template <typename Body>
    __device__ __forceinline__ void for_features(const Body& body) {
        if (!holds_sums_first<V>(lanes_)) return;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const int feature = feature_ + (added_ + i) * lanes_;
            if (i < count_ && feature < width_) body(feature, sum_[i]);
        }
    }

    const Operation operation_;
    const Elements lhs_, rhs_;
    const int is_int64_, entries_, width_, lanes_, groups_, group_, count_, feature_;
    Sum* const pieces_;
    uint32_t lhs_at_[V], rhs_at_[V];
    uint32_t lhs_row_[kBatch], rhs_row_[kBatch];
    Sum sum_[V];
    int added_;
};

// out[v] = sum over the entries p of row v of operation(lhs[lhs_rows[p]], rhs[rhs_rows[p]]), times the scales. A warp
// sums a share (rows.cuh) in groups of `lanes` lanes, block (i, j) 4 shares and features from 2 * j * lanes on.
//     operation    kCopy reads lhs only
//     offsets      of lhs, then of rhs: see Layout
//     the rest     as in spmm.cu
#define GQC_SPMM_ELEMENTS(name, Sum)                                                                                  \
    GQC_GLOBAL(kShareThreads, 7)                                                                                      \
    name(const void* indptr, int64_t is_int64, int64_t rows, int64_t entries, int64_t cost, int64_t count,            \
         int64_t operation, const void* lhs, const void* lhs_rows, const float* lhs_scale, int64_t lhs_type,          \
         int64_t lhs_width, const void* rhs, const void* rhs_rows, const float* rhs_scale, int64_t rhs_type,          \
         int64_t rhs_width, int64_t runs, int64_t length, const int64_t* offsets, int64_t lhs_step, int64_t rhs_step, \
         int64_t lanes, Sum* pieces, int* cut_rows, const float* factors, int64_t divide, int64_t dtype, void* out,   \
         float* absmax) {                                                                                             \
        GQC_SHARED(uint32_t, scratch, kWarp);                                                                         \
        ElementSum<Sum> sum(static_cast<Operation>(operation),                                                        \
                            {lhs, lhs_rows, static_cast<ElementType>(lhs_type), static_cast<uint32_t>(lhs_width)},    \
                            {rhs, rhs_rows, static_cast<ElementType>(rhs_type), static_cast<uint32_t>(rhs_width)},    \
                            {length, offsets, offsets + runs, lhs_step, rhs_step}, static_cast<int>(is_int64),        \
                            static_cast<int>(entries), static_cast<int>(runs * length), static_cast<int>(lanes),      \
                            static_cast<int>(kElements * lanes * blockIdx.y), pieces,                                 \
                            Output(out, dtype, factors, divide, lhs_scale, rhs_scale));                               \
        sum_share(Shares(indptr, is_int64, rows, entries, cost), count, sum, cut_rows);                               \
        if (absmax) raise_absmax(absmax, sum.output.seen, scratch);                                                   \
    }                                                                                                                 \
    GQC_EXPORT(name)

GQC_SPMM_ELEMENTS(spmm_elements_f32, float)
GQC_SPMM_ELEMENTS(spmm_elements_int32, int)
