// SPMM with max or min in float32, and where its gradient goes.

#include "common/kernel.h"
#include "cpu/graph/best_rows.h"

namespace gqc::GQC_ISA {
namespace {

template <typename Index>
struct SpmmCmp {
    int64_t threads;
    Rows<Index> rows;
    const Index* eids;
    Operand<float, Index> lhs, rhs;
    const FeatureLayout& layout;
    float* out;
    int64_t* arg;

    template <typename Order, typename Op, int StepA, int StepB, int Tile>
    Error best() const {
        return BestRows<Order, Op, float, StepA, float, StepB, Index>(rows, eids, lhs, rhs, layout, 1.0f, out, arg)
            .template run<Tile>(threads);
    }

    template <typename Order>
    Error run(int64_t op) const {
        if (layout.lhs_step == 0 && op != kDiv) {
            return SpmmCmp{threads, rows, eids, rhs, lhs, layout.swapped(), out, arg}.template run<Order>(op);
        }
        switch (op) {
            case kCopy:
                return best<Order, Copy, 1, 1, kBestTile>();
            case kMul:
                return layout.rhs_step == 0 ? best<Order, Mul, 1, 0, 1>() : best<Order, Mul, 1, 1, 1>();
            case kAdd:
                return layout.rhs_step == 0 ? best<Order, Add, 1, 0, 1>() : best<Order, Add, 1, 1, 1>();
            case kDiv:
                if (layout.lhs_step == 0) return best<Order, Div, 0, 1, 1>();
                return layout.rhs_step == 0 ? best<Order, Div, 1, 0, 1>() : best<Order, Div, 1, 1, 1>();
        }
        return kUnknownOp;
    }
};

}  // namespace

// out[v] = max (or min) over the entries p of row v of op(lhs[lhs_rows[p]], rhs[rhs_rows[p]]), arg[v] = eids[p] of the
// best one; 0 and -1 for an empty row. kCopy reads lhs only.
GQC_KERNEL(spmm_cmp)(int64_t threads, int64_t op, int64_t is_max, int64_t is_int64, int64_t rows, const void* indptr,
                     const void* eids, const float* lhs, const void* lhs_rows, const float* rhs, const void* rhs_rows,
                     const FeatureLayout* layout, float* out, int64_t* arg) {
    return with_index(is_int64, [&](auto index) {
        using Index = decltype(index);
        const SpmmCmp<Index> kernel{threads,
                                    {static_cast<const Index*>(indptr), rows},
                                    static_cast<const Index*>(eids),
                                    {lhs, static_cast<const Index*>(lhs_rows)},
                                    {rhs, static_cast<const Index*>(rhs_rows)},
                                    *layout,
                                    out,
                                    arg};
        return is_max ? kernel.template run<Max>(op) : kernel.template run<Min>(op);
    });
}

// out[arg[v, f], f] = grad[v, f] and 0 on all other edges; row v's edges are eids[indptr[v]] .. eids[indptr[v + 1]].
GQC_KERNEL(spmm_cmp_bwd)(int64_t threads, int64_t is_int64, int64_t rows, const void* indptr, const void* eids,
                         const int64_t* arg, const float* grad, int64_t width, float* out) {
    return with_index(is_int64, [&](auto index) -> Error {
        using Index = decltype(index);
        const Rows<Index> matrix{static_cast<const Index*>(indptr), rows};
        const Index* edge = static_cast<const Index*>(eids);
        for_row_ranges(threads, matrix, width, [&](int64_t first, int64_t last) {
            for (int64_t v = first; v < last; ++v) {
                for (int64_t p = matrix.indptr[v]; p < matrix.indptr[v + 1]; ++p) {
                    std::memset(out + static_cast<int64_t>(edge[p]) * width, 0,
                                static_cast<size_t>(width) * sizeof(float));
                }
                for (int64_t f = 0; f < width; ++f) {
                    const int64_t winner = arg[v * width + f];
                    if (winner >= 0) out[winner * width + f] = grad[v * width + f];
                }
            }
        });
        return nullptr;
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
            for (int64_t u = 0; u < sources; ++u) {
                std::memset(out + u * width + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
            }
            for (int64_t v = 0; v < rows; ++v) {
                for (int64_t f = begin; f < end; ++f) {
                    const int64_t winner = arg[v * width + f];
                    if (winner >= 0) out[static_cast<int64_t>(source[winner]) * width + f] += grad[v * width + f];
                }
            }
        }
        return nullptr;
    });
}

}  // namespace gqc::GQC_ISA
