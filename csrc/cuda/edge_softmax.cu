// Softmax of edge values over the in-edges of each node, for every head, and its gradient.
//
// A row is the in-edges of one node. Groups of lanes take short rows; a long row is cut into parts of what a block
// holds in registers, which are listed in memory for the blocks of two more kernels: the first reduces each part (and
// finishes rows of one part), the second joins the parts of a row. Parts of a row are joined in their order, so the
// result does not depend on which of them came first.

#include "cuda/device.cuh"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <int V>
struct Values {
    float of[V];
};

template <int V>
__device__ __forceinline__ Values<V> all_equal(float x) {
    Values<V> values;
#pragma unroll
    for (int i = 0; i < V; ++i) values.of[i] = x;
    return values;
}
template <int V>
__device__ __forceinline__ Values<V> read(const float* p) {
    if constexpr (V == 4) {
        const float4 x = global_load<float4>(p);
        return {{x.x, x.y, x.z, x.w}};
    } else {
        return {{*p}};
    }
}
template <int V>
__device__ __forceinline__ void write(float* p, const Values<V>& x) {
    if constexpr (V == 4) {
        global_store<float4>(p, make_float4(x.of[0], x.of[1], x.of[2], x.of[3]));
    } else {
        *p = x.of[0];
    }
}

__device__ __forceinline__ float infinity() {
    return __uint_as_float(0x7f800000u);
}

// What has been seen of V heads of a row, as kFields numbers each.
template <int kFields, int V>
struct Total {
    Values<V> field[kFields];
};

// The forward: the largest logit, and the sum of exp(logit - largest). A NaN is not seen by the maximum but makes its
// exponential and so the sum NaN; a row of nothing but -inf has the sum 0 and the results exp(NaN).
template <int V>
struct Softmax {
    static constexpr int kFields = 2;
    static constexpr int kCells = 4;  // edges whose values a lane keeps in registers
    using Cell = Values<V>;
    using Sums = Total<kFields, V>;

    const float* logits;
    float* out;

    static __device__ __forceinline__ Sums none() { return {{all_equal<V>(-infinity()), all_equal<V>(0.0f)}}; }
    static __device__ __forceinline__ Cell no_edge() { return all_equal<V>(-infinity()); }
    __device__ __forceinline__ Cell load(int64_t at) const { return read<V>(logits + at); }

    template <int N>
    static __device__ __forceinline__ void add(Sums& sums, const Cell (&cells)[N]) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            float largest = sums.field[0].of[i];
#pragma unroll
            for (int k = 0; k < N; ++k) largest = fmaxf(largest, cells[k].of[i]);
            float sum = sums.field[1].of[i] * rescale(sums.field[0].of[i], largest);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const float x = cells[k].of[i];
                sum += x == -infinity() ? 0.0f : expf(x - largest);
            }
            sums.field[0].of[i] = largest;
            sums.field[1].of[i] = sum;
        }
    }
    static __device__ __forceinline__ void join(Sums& sums, const Sums& others) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const float a = sums.field[0].of[i], b = others.field[0].of[i], largest = fmaxf(a, b);
            sums.field[0].of[i] = largest;
            sums.field[1].of[i] =
                sums.field[1].of[i] * rescale(a, largest) + others.field[1].of[i] * rescale(b, largest);
        }
    }
    // Where there is a result, the sum is at least 1: its largest logit adds that.
    static __device__ __forceinline__ void finish(Sums& sums) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums.field[1].of[i] = 1.0f / sums.field[1].of[i];
    }
    __device__ __forceinline__ void store(int64_t at, const Cell& cell, const Sums& sums) const {
        Values<V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.of[i] = expf(cell.of[i] - sums.field[0].of[i]) * sums.field[1].of[i];
        write<V>(out + at, result);
    }

  private:
    // What a sum of exp(x - from) is multiplied by to be one of exp(x - to).
    static __device__ __forceinline__ float rescale(float from, float to) {
        return from == to ? 1.0f : expf(from - to);
    }
};

// The gradient of the logits: out * (grad - sum of out * grad).
template <int V>
struct Gradient {
    static constexpr int kFields = 1;
    static constexpr int kCells = V == 4 ? 2 : 4;
    struct Cell {
        Values<V> weight, product;
    };
    using Sums = Total<kFields, V>;

    const float* out;
    const float* grad;
    float* result;

    static __device__ __forceinline__ Sums none() { return {{all_equal<V>(0.0f)}}; }
    static __device__ __forceinline__ Cell no_edge() { return {all_equal<V>(0.0f), all_equal<V>(0.0f)}; }
    __device__ __forceinline__ Cell load(int64_t at) const {
        Cell cell{read<V>(out + at), read<V>(grad + at)};
#pragma unroll
        for (int i = 0; i < V; ++i) cell.product.of[i] *= cell.weight.of[i];
        return cell;
    }

    template <int N>
    static __device__ __forceinline__ void add(Sums& sums, const Cell (&cells)[N]) {
#pragma unroll
        for (int k = 0; k < N; ++k) join(sums, {{cells[k].product}});
    }
    static __device__ __forceinline__ void join(Sums& sums, const Sums& others) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums.field[0].of[i] += others.field[0].of[i];
    }
    static __device__ __forceinline__ void finish(Sums&) {}
    __device__ __forceinline__ void store(int64_t at, const Cell& cell, const Sums& sums) const {
        Values<V> x;
#pragma unroll
        for (int i = 0; i < V; ++i) x.of[i] = cell.product.of[i] - cell.weight.of[i] * sums.field[0].of[i];
        write<V>(result + at, x);
    }
};

struct EdgeRows {
    const void* indptr;
    const void* eids;
    int64_t rows, heads;
    bool is_int64;

    __device__ __forceinline__ int64_t begin(int64_t row) const {
        return is_int64 ? static_cast<const int64_t*>(indptr)[row] : static_cast<const int32_t*>(indptr)[row];
    }
};

// Parts of long rows: part i is (row, number of the part in its row), the parts of a row stand together.
struct Parts {
    unsigned long long* count;
    int64_t* list;
    int log_size;  // edges of a part

    __device__ __forceinline__ int64_t of_row(int64_t length) const { return ((length - 1) >> log_size) + 1; }
};

// N edges of a row for one pack of V heads: those at first, first + step, .. before end. Edges from there on are none.
template <typename Task, int N, int V>
struct Cells {
    typename Task::Cell cells[N];
    int64_t at[N];  // of the edge's values, negative without an edge

    __device__ __forceinline__ void load(const Task& task, const EdgeRows& edges, int64_t first, int step, int64_t end,
                                         int pack) {
        if (edges.is_int64) {
            read_eids(static_cast<const int64_t*>(edges.eids), first, step, end);
        } else {
            read_eids(static_cast<const int32_t*>(edges.eids), first, step, end);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) at[k] = at[k] < 0 ? -1 : at[k] * edges.heads + pack * V;
#pragma unroll
        for (int k = 0; k < N; ++k) cells[k] = at[k] >= 0 ? task.load(at[k]) : Task::no_edge();
    }
    __device__ __forceinline__ void store(const Task& task, const typename Task::Sums& sums) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (at[k] >= 0) task.store(at[k], cells[k], sums);
        }
    }

  private:
    template <typename Index>
    __device__ __forceinline__ void read_eids(const Index* eids, int64_t first, int step, int64_t end) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const int64_t position = first + k * step;
            at[k] = position < end ? static_cast<int64_t>(eids[position]) : -1;
        }
    }
};

// Joins the sums of lanes that differ in the bits first, 2 * first, .. below end.
template <typename Task>
__device__ __forceinline__ void join_lanes(typename Task::Sums& sums, int first, int end) {
#pragma unroll 1
    for (int distance = first; distance < end; distance *= 2) {
        typename Task::Sums others;
#pragma unroll
        for (int f = 0; f < Task::kFields; ++f) {
#pragma unroll
            for (int i = 0; i < static_cast<int>(sizeof(sums.field[f]) / sizeof(float)); ++i) {
                others.field[f].of[i] = __shfl_xor_sync(kAllLanes, sums.field[f].of[i], distance);
            }
        }
        Task::join(sums, others);
    }
}

// Rows of at most `longest` edges, one for each group of 2^log_slots * 2^log_packs lanes: lanes take every
// 2^log_slots'th edge and every 2^log_packs'th pack of heads. Longer rows are listed.
template <typename Task, int V>
__device__ __forceinline__ void short_rows(const Task& task, const EdgeRows& edges, int64_t log_slots,
                                           int64_t log_packs, int64_t longest, const Parts& parts) {
    constexpr int N = Task::kCells;
    const int lanes = 1 << log_slots << log_packs, lane = lane_id() & (lanes - 1);
    const int slots = 1 << log_slots, slot = lane >> log_packs;
    const int packs_at_once = 1 << log_packs, num_packs = static_cast<int>(edges.heads / V);
    const int64_t row = grid_thread() >> log_slots >> log_packs;
    const bool is_row = row < edges.rows;
    const int64_t begin = is_row ? edges.begin(row) : 0;
    int64_t end = is_row ? edges.begin(row + 1) : 0;

    const bool is_long = end - begin > longest;
    const int64_t num_parts = is_long ? parts.of_row(end - begin) : 0;
    unsigned long long place = 0;
    if (is_long && lane == 0) place = atomicAdd(parts.count, static_cast<unsigned long long>(num_parts));
    place = __shfl_sync(kAllLanes, place, lane_id() - lane);
    for (int64_t part = lane; part < num_parts; part += lanes) {
        parts.list[2 * (place + part)] = row;
        parts.list[2 * (place + part) + 1] = part;
    }
    if (is_long) end = begin;

#pragma unroll 1
    for (int first_pack = 0; first_pack < num_packs;
         first_pack += packs_at_once) {  // the same for all lanes: they join
        const int pack = first_pack + (lane & (packs_at_once - 1));
        const int64_t stop = pack < num_packs ? end : begin, rest = begin + slot + N * slots;
        typename Task::Sums sums = Task::none();
        Cells<Task, N, V> kept;
        kept.load(task, edges, begin + slot, slots, stop, pack);
        Task::add(sums, kept.cells);
#pragma unroll 1
        for (int64_t position = rest; position < stop; position += 2 * slots) {
            Cells<Task, 2, V> more;
            more.load(task, edges, position, slots, stop, pack);
            Task::add(sums, more.cells);
        }
        join_lanes<Task>(sums, packs_at_once, lanes);
        Task::finish(sums);
        kept.store(task, sums);
#pragma unroll 1
        for (int64_t position = rest; position < stop; position += 2 * slots) {
            Cells<Task, 2, V> more;
            more.load(task, edges, position, slots, stop, pack);
            more.store(task, sums);
        }
    }
}

// The parts of long rows, a block for each: kParts reduces a part to its sums in `joined` or, where it is the whole
// row, finishes it; kRows finishes the parts of all other rows. Numbered as _STAGES of runtime/cuda/edge_softmax.py.
enum Stage : int64_t { kParts, kRows };

template <typename Task, int V>
__device__ __forceinline__ void long_rows(Stage stage, const Task& task, const EdgeRows& edges, int64_t log_packs,
                                          const Parts& parts, float* joined) {
    constexpr int N = Task::kCells;
    constexpr int kSums = Task::kFields * V;
    GQC_SHARED(float, scratch, kWarps * kWarp * kSums);
    const int packs_at_once = 1 << log_packs, num_packs = static_cast<int>(edges.heads / V);
    const int slots = kThreads >> log_packs, slot = static_cast<int>(threadIdx.x) >> log_packs;
    const int pack_slot = static_cast<int>(threadIdx.x) & (packs_at_once - 1);
    const int64_t count = static_cast<int64_t>(*parts.count), part_sums = edges.heads * Task::kFields;

#pragma unroll 1
    for (int64_t item = blockIdx.x; item < count; item += gridDim.x) {
        const int64_t row = parts.list[2 * item], part = parts.list[2 * item + 1];
        const int64_t row_begin = edges.begin(row), row_end = edges.begin(row + 1);
        const int64_t num_parts = parts.of_row(row_end - row_begin);
        if (stage == kRows && num_parts == 1) continue;
        const int64_t begin = row_begin + (part << parts.log_size), limit = begin + (int64_t{1} << parts.log_size);
        const int64_t end = limit < row_end ? limit : row_end;

#pragma unroll 1
        for (int first_pack = 0; first_pack < num_packs; first_pack += packs_at_once) {
            const int pack = first_pack + pack_slot;
            const bool is_pack = pack < num_packs;
            float* const sums_of_pack = joined + pack * kSums;
            typename Task::Sums sums = Task::none();
            Cells<Task, N, V> kept;
            kept.load(task, edges, begin + slot, slots, is_pack ? end : begin, pack);
            if (stage == kParts) {
                Task::add(sums, kept.cells);
            } else {
#pragma unroll 1
                for (int64_t other = is_pack ? slot : num_parts; other < num_parts; other += slots) {
                    const float* const from = sums_of_pack + (item - part + other) * part_sums;
                    typename Task::Sums others;
#pragma unroll
                    for (int f = 0; f < Task::kFields; ++f) others.field[f] = read<V>(from + f * V);
                    Task::join(sums, others);
                }
            }

            join_lanes<Task>(sums, packs_at_once, kWarp);
            if (lane_id() < packs_at_once) {
#pragma unroll
                for (int i = 0; i < kSums; ++i) {
                    scratch[(warp_id() * packs_at_once + pack_slot) * kSums + i] = sums.field[i / V].of[i % V];
                }
            }
            __syncthreads();
            sums = Task::none();
#pragma unroll 1
            for (int warp = 0; warp < kWarps; ++warp) {
                typename Task::Sums others;
#pragma unroll
                for (int i = 0; i < kSums; ++i) {
                    others.field[i / V].of[i % V] = scratch[(warp * packs_at_once + pack_slot) * kSums + i];
                }
                Task::join(sums, others);
            }
            __syncthreads();

            if (stage == kRows || num_parts == 1) {
                Task::finish(sums);
                kept.store(task, sums);
            } else if (slot == 0 && is_pack) {
#pragma unroll
                for (int f = 0; f < Task::kFields; ++f) {
                    write<V>(sums_of_pack + item * part_sums + f * V, sums.field[f]);
                }
            }
        }
    }
}

// Arguments that all of them share; heads are read in packs of V.
#define GQC_ROWS                                                                                            \
    int64_t is_int64, int64_t rows, const void *indptr, const void *eids, int64_t heads, int64_t log_packs, \
        unsigned long long *num_parts, int64_t *parts, int64_t log_part

#define GQC_SOFTMAX(V)                                                                                                 \
    GQC_GLOBAL(256, 3)                                                                                                 \
    edge_softmax_short_by_##V(GQC_ROWS, int64_t log_slots, int64_t longest, const float* logits, float* out) {         \
        short_rows<Softmax<V>, V>({logits, out}, {indptr, eids, rows, heads, is_int64 != 0}, log_slots, log_packs,     \
                                  longest, {num_parts, parts, static_cast<int>(log_part)});                            \
    }                                                                                                                  \
    GQC_EXPORT(edge_softmax_short_by_##V)                                                                              \
    GQC_GLOBAL(256, 3)                                                                                                 \
    edge_softmax_long_by_##V(GQC_ROWS, int64_t stage, float* joined, const float* logits, float* out) {                \
        long_rows<Softmax<V>, V>(static_cast<Stage>(stage), {logits, out}, {indptr, eids, rows, heads, is_int64 != 0}, \
                                 log_packs, {num_parts, parts, static_cast<int>(log_part)}, joined);                   \
    }                                                                                                                  \
    GQC_EXPORT(edge_softmax_long_by_##V)

#define GQC_GRADIENT(V)                                                                                              \
    GQC_GLOBAL(256, 3)                                                                                               \
    edge_softmax_bwd_short_by_##V(GQC_ROWS, int64_t log_slots, int64_t longest, const float* out, const float* grad, \
                                  float* result) {                                                                   \
        short_rows<Gradient<V>, V>({out, grad, result}, {indptr, eids, rows, heads, is_int64 != 0}, log_slots,       \
                                   log_packs, longest, {num_parts, parts, static_cast<int>(log_part)});              \
    }                                                                                                                \
    GQC_EXPORT(edge_softmax_bwd_short_by_##V)                                                                        \
    GQC_GLOBAL(256, 3)                                                                                               \
    edge_softmax_bwd_long_by_##V(GQC_ROWS, int64_t stage, float* joined, const float* out, const float* grad,        \
                                 float* result) {                                                                    \
        long_rows<Gradient<V>, V>(static_cast<Stage>(stage), {out, grad, result},                                    \
                                  {indptr, eids, rows, heads, is_int64 != 0}, log_packs,                             \
                                  {num_parts, parts, static_cast<int>(log_part)}, joined);                           \
    }                                                                                                                \
    GQC_EXPORT(edge_softmax_bwd_long_by_##V)

GQC_SOFTMAX(4)
GQC_SOFTMAX(1)
GQC_GRADIENT(4)
GQC_GRADIENT(1)
