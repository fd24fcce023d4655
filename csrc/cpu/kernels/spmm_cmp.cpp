// Max and min over the entries of a row, and where their gradient goes.

#include "common/kernel.h"
#include "cpu/graph/best_rows.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Index>
struct RoutedGradients {
    Rows<Index> rows;
    const Index* eids;
    const int64_t* arg;
    const float* grad;
    int64_t width;
    float* out;

    using Partial = float;
    int64_t partial_size() const { return 0; }
};

// Clears the rows of edges, then puts gradients there.
template <typename Index>
struct RoutingWorker {
    explicit RoutingWorker(const RoutedGradients<Index>& job) : job(job) {}
    bool ok() const { return true; }

    void rows(int64_t first, int64_t last) const {
        for (int64_t v = first; v < last; ++v) {
            clear(job.rows.indptr[v], job.rows.indptr[v + 1]);
            route(v);
        }
    }
    void part(int64_t, int64_t begin, int64_t end, float*) const { clear(begin, end); }
    void join(int64_t v, const float*, int64_t) const { route(v); }

    void clear(int64_t begin, int64_t end) const {
        for (int64_t p = begin; p < end; ++p) {
            std::memset(job.out + static_cast<int64_t>(job.eids[p]) * job.width, 0,
                        static_cast<size_t>(job.width) * sizeof(float));
        }
    }
    void route(int64_t v) const {
        for (int64_t i = v * job.width; i < (v + 1) * job.width; ++i)
            if (job.arg[i] >= 0) job.out[job.arg[i] * job.width + i - v * job.width] = job.grad[i];
    }

    const RoutedGradients<Index>& job;
};

// Adds numbers to elements of memory that lie anywhere: what is read is asked for in time, twice kDistance elements
// ahead the source of a winner, kDistance ahead the element that it leads to.
template <typename Index>
struct WinnerSums {
    static constexpr int64_t kDistance = 64;

    const Index* source;
    const int64_t* arg;
    const float* grad;
    const int64_t width;
    float* out;

    // Features begin .. end of all rows.
    void add(int64_t rows, int64_t begin, int64_t end) const {
        const int64_t count = rows * (end - begin);
        Place far{begin, 0, begin, end, width}, near = far, here = far;
        float* targets[kDistance];
        for (int64_t i = -2 * kDistance; i < count; ++i) {
            if (i + 2 * kDistance < count) {
                const int64_t winner = arg[far.index()];
                if (winner >= 0) __builtin_prefetch(source + winner);
                far.advance();
            }
            if (i >= 0) {
                if (float* const target = targets[i % kDistance]) *target += grad[here.index()];
                here.advance();
            }
            if (i >= -kDistance && i + kDistance < count) {
                const int64_t winner = arg[near.index()];
                float* const target =
                    winner < 0 ? nullptr : out + static_cast<int64_t>(source[winner]) * width + near.feature;
                if (target) __builtin_prefetch(target, 1);
                targets[(i + kDistance) % kDistance] = target;
                near.advance();
            }
        }
    }

  private:
    struct Place {
        int64_t feature, row;
        const int64_t begin, end, width;

        int64_t index() const { return row + feature; }
        void advance() {
            if (++feature < end) return;
            feature = begin;
            row += width;
        }
    };
};

}  // namespace

// out[v] = max (or min) over the entries p of row v of x[x_rows[p]], arg[v] = eids[p] of the best one; 0 and -1 for an
// empty row. x has rows of `width` floats or, where scale is not null, int8 values of that scale.
GQC_KERNEL(spmm_cmp)(int64_t threads, int64_t is_max, int64_t is_int64, int64_t rows, int64_t /*entries*/,
                     const void* indptr, const void* eids, const void* x, const void* x_rows, const float* scale,
                     int64_t width, float* out, int64_t* arg) {
    const int64_t bytes = rows * width * static_cast<int64_t>(sizeof *out + sizeof *arg);
    return with_index(is_int64, [&](auto index) -> Error {
        using Index = decltype(index);
        const auto best = [&](auto order, auto value) {
            using T = decltype(value);
            const BestRows<decltype(order), T, Index> job{{static_cast<const Index*>(indptr), rows},
                                                          static_cast<const Index*>(eids),
                                                          {static_cast<const T*>(x), static_cast<const Index*>(x_rows)},
                                                          width,
                                                          scale ? *scale : 1.0f,
                                                          out,
                                                          arg,
                                                          is_streamed(bytes)};
            return for_split_rows<BestRowsWorker<decltype(order), T, Index>>(threads, job.rows, width, job);
        };
        if (is_max) return scale ? best(Max(), int8_t()) : best(Max(), float());
        return scale ? best(Min(), int8_t()) : best(Min(), float());
    });
}

// out[arg[v, f], f] = grad[v, f] and 0 on all other edges; row v's edges are eids[indptr[v]] .. eids[indptr[v + 1]].
GQC_KERNEL(spmm_cmp_bwd)(int64_t threads, int64_t is_int64, int64_t rows, int64_t /*entries*/, const void* indptr,
                         const void* eids, const int64_t* arg, const float* grad, int64_t width, float* out) {
    return with_index(is_int64, [&](auto index) -> Error {
        using Index = decltype(index);
        const RoutedGradients<Index> job{
            {static_cast<const Index*>(indptr), rows}, static_cast<const Index*>(eids), arg, grad, width, out};
        return for_split_rows<RoutingWorker<Index>>(threads, job.rows, width, job);
    });
}

// out[src[arg[v, f]], f] = sum of grad[v, f]. Threads share the features, not the rows, so sums have one order.
GQC_KERNEL(spmm_cmp_bwd_src)(int64_t threads, int64_t is_int64, int64_t rows, int64_t sources, const void* src,
                             const int64_t* arg, const float* grad, int64_t width, float* out) {
    return with_index(is_int64, [&](auto index) -> Error {
        using Index = decltype(index);
        constexpr int64_t kLine = 16;  // floats in a cache line, which two threads should not both write
        const Index* source = static_cast<const Index*>(src);
        const int64_t lines = (width + kLine - 1) / kLine;
        const int workers = team(threads < lines ? threads : lines, (rows + sources) * width);
#pragma omp parallel for num_threads(workers) schedule(static)
        for (int worker = 0; worker < workers; ++worker) {
            const int64_t begin = lines * worker / workers * kLine;
            const int64_t end = worker + 1 == workers ? width : lines * (worker + 1) / workers * kLine;
            const size_t bytes = static_cast<size_t>(end - begin) * sizeof(float);
            for (int64_t u = 0; u < sources; ++u) std::memset(out + u * width + begin, 0, bytes);
            WinnerSums<Index>{source, arg, grad, width, out}.add(rows, begin, end);
        }
        return nullptr;
    });
}

}  // namespace gqc::GQC_ISA
