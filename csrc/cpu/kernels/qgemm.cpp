// Products of int8 matrices with exact integer sums: out = float(sum) * (a_scale * b_scale) + bias, and the largest
// magnitude of out for the quantization that follows.

#include <omp.h>

#include <type_traits>

#include "common/buffer.h"
#include "common/scalar.h"
#include "cpu/pack.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kChunk = 256;           // contracted rows that are packed at a time, so that a panel stays in L1
constexpr int64_t kLeftPanel = 48;        // left rows of a panel: whole register tiles and whole vectors
constexpr int64_t kProducts = 64 * 8192;  // a thread's least work, some microseconds

struct Shape {
    int64_t m, n, k;
};

template <typename Out>
struct Epilogue {
    float scale;
    const float* bias;  // n floats or null
    Out* out;           // [m, n]
    int64_t n;
    float* absmax;

    // Writes columns j0 .. j0+count of row i; returns the largest magnitude among them.
    template <typename Sum>
    uint32_t write(const Sum* sums, int64_t i, int64_t j0, int64_t count) const {
        Out* row = out + i * n + j0;
        uint32_t largest = 0;
        for (int64_t j = 0; j < count; ++j) {
            float y = static_cast<float>(sums[j]) * scale;
            if (bias) y = y + bias[j0 + j];
            store(&row[j], y);
            largest = magnitude(y) > largest ? magnitude(y) : largest;
        }
        return largest;
    }

    // Rounding to Out is monotone, so it may follow the maximum.
    void finish(uint32_t largest) const {
        Out rounded;
        store(&rounded, float_of(largest));
        *absmax = load(rounded);
    }
};

int vectors_of(int64_t columns) {
    return static_cast<int>(round_up(columns, kLanes) / kLanes);
}
int64_t panel_columns(int64_t n, int64_t j0) {
    return n - j0 < kColumns ? n - j0 : kColumns;
}

// What packed left operands add too much to the sums of a column.
uint32_t excess(int32_t column_sum) {
    return static_cast<uint32_t>(column_sum) * static_cast<uint32_t>(kLeftOffset);
}

// Rows of the output are shared out; right is packed once. Needs k <= kExactProducts.
template <typename Out>
Error gemm_by_rows(int64_t threads, const Shape& shape, const int8_t* a, const Operand& right,
                   const Epilogue<Out>& epilogue) {
    const auto [m, n, k] = shape;
    const int64_t k_packed = round_up(k, kGroup), tiles = round_up(m, kRows) / kRows;
    const int workers = team(threads, m * n * k, kProducts);
    Buffer<Right> packed(round_up(n, kLanes) * k_packed);
    Buffer<int32_t> column_sums(round_up(n, kLanes));
    Buffer<Left> left_rows(workers * kRows * k_packed);
    if (!packed.ok() || !column_sums.ok() || !left_rows.ok()) return kOutOfMemory;
    std::memset(column_sums.get(), 0, static_cast<size_t>(round_up(n, kLanes)) * sizeof(int32_t));
    std::memset(left_rows.get(), 0, static_cast<size_t>(workers * kRows * k_packed) * sizeof(Left));

    uint32_t largest = 0;
#pragma omp parallel num_threads(workers) reduction(max : largest)
    {
#pragma omp for schedule(static)
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
            const int64_t columns = panel_columns(n, j0);
            pack_panel<Right, encode_right>(right, 0, k, j0, columns, vectors_of(columns) * kLanes,
                                            &packed[j0 * k_packed], &column_sums[j0]);
        }
        Left* left = &left_rows[omp_get_thread_num() * kRows * k_packed];
        alignas(64) uint32_t sums[kRows * kColumns];
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t i0 = t * kRows, rows = m - i0 < kRows ? m - i0 : kRows;
            for (int64_t r = 0; r < rows; ++r) encode_row<Left, encode_left>(a + (i0 + r) * k, k, left + r * k_packed);
            for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
                const int64_t columns = panel_columns(n, j0);
                const int vectors = vectors_of(columns);
                for (int r = 0; r < kRows; ++r)
                    for (int j = 0; j < vectors * kLanes; ++j) sums[r * kColumns + j] = 0 - excess(column_sums[j0 + j]);
                dot_tile(vectors, {left, k_packed, kGroup}, &packed[j0 * k_packed], k_packed / kGroup, sums, kColumns);
                for (int64_t r = 0; r < rows; ++r) {
                    const auto* row = reinterpret_cast<const int32_t*>(sums + r * kColumns);
                    const uint32_t here = epilogue.write(row, i0 + r, j0, columns);
                    largest = here > largest ? here : largest;
                }
            }
        }
    }
    epilogue.finish(largest);
    return nullptr;
}

// One thread's share of a contraction: packs chunks of both operands and keeps int32 sums of the whole output.
class PartialProduct {
  public:
    PartialProduct(const Shape& shape)
        : shape_(shape),
          m_packed_(round_up(shape.m, kLeftPanel)),
          n_packed_(round_up(shape.n, kLanes)),
          left_(m_packed_ * kChunk),
          right_(n_packed_ * kChunk),
          sums_(m_packed_ * n_packed_),
          column_sums_(n_packed_) {
        if (ok()) clear();
    }

    bool ok() const { return left_.ok() && right_.ok() && sums_.ok() && column_sums_.ok(); }

    void add_chunk(const Operand& left, const Operand& right, int64_t k0, int64_t k_count) {
        const auto [m, n, k] = shape_;
        const int64_t groups = round_up(k_count, kGroup) / kGroup;
        for (int64_t i0 = 0; i0 < m; i0 += kLeftPanel)
            pack_panel<Left, encode_left>(left, k0, k_count, i0, m - i0 < kLeftPanel ? m - i0 : kLeftPanel, kLeftPanel,
                                          &left_[i0 * kChunk], nullptr);
        for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
            const int64_t columns = panel_columns(n, j0);
            const int vectors = vectors_of(columns);
            pack_panel<Right, encode_right>(right, k0, k_count, j0, columns, vectors * kLanes, right_.get(),
                                            &column_sums_[j0]);
            for (int64_t i0 = 0; i0 < m; i0 += kRows) {
                const Left* rows = &left_[i0 / kLeftPanel * kLeftPanel * kChunk + i0 % kLeftPanel * kGroup];
                dot_tile(vectors, {rows, kGroup, kLeftPanel * kGroup}, right_.get(), groups,
                         &sums_[i0 * n_packed_ + j0], n_packed_);
            }
        }
    }

    // Adds the sums to wide[m, n] and starts again from 0.
    void empty_into(int64_t* wide) {
        for (int64_t i = 0; i < shape_.m; ++i)
            for (int64_t j = 0; j < shape_.n; ++j)
                wide[i * shape_.n + j] += static_cast<int32_t>(sums_[i * n_packed_ + j] - excess(column_sums_[j]));
        clear();
    }

  private:
    void clear() {
        std::memset(sums_.get(), 0, static_cast<size_t>(m_packed_ * n_packed_) * sizeof(uint32_t));
        std::memset(column_sums_.get(), 0, static_cast<size_t>(n_packed_) * sizeof(int32_t));
    }

    Shape shape_;
    int64_t m_packed_, n_packed_;
    Buffer<Left> left_;
    Buffer<Right> right_;  // one panel
    Buffer<uint32_t> sums_;
    Buffer<int32_t> column_sums_;
};

// The contracted index is shared out: for outputs that are small beside k, as gradients of weights are.
template <typename Out>
Error gemm_by_contraction(int64_t threads, const Shape& shape, const Operand& left, const Operand& right,
                          const Epilogue<Out>& epilogue) {
    const auto [m, n, k] = shape;
    Buffer<int64_t> wide(m * n);
    if (!wide.ok()) return kOutOfMemory;
    std::memset(wide.get(), 0, static_cast<size_t>(m * n) * sizeof(int64_t));
    const int64_t chunks = round_up(k, kChunk) / kChunk;
    const int workers = team(threads, m * n * k, kProducts);

    bool enough_memory = true;
#pragma omp parallel num_threads(workers) reduction(&& : enough_memory)
    {
        PartialProduct part(shape);
        enough_memory = part.ok();
        const int64_t share = omp_get_thread_num(), shares = omp_get_num_threads();
        const int64_t first = chunks * share / shares, last = chunks * (share + 1) / shares;
        for (int64_t c = first; c < last && enough_memory; ++c) {
            const int64_t k0 = c * kChunk;
            part.add_chunk(left, right, k0, k - k0 < kChunk ? k - k0 : kChunk);
            if ((c - first + 1) % (kExactProducts / kChunk) == 0 || c + 1 == last) {
#pragma omp critical
                part.empty_into(wide.get());
            }
        }
    }
    if (!enough_memory) return kOutOfMemory;
    uint32_t largest = 0;
    for (int64_t i = 0; i < m; ++i) {
        const uint32_t here = epilogue.write(&wide[i * n], i, 0, n);
        largest = here > largest ? here : largest;
    }
    epilogue.finish(largest);
    return nullptr;
}

}  // namespace

// a: int8 [m, k], or [k, m] where trans_a; b: int8 [k, n], or [n, k] where trans_b; a_scale, b_scale: one float; bias:
// n floats or null; out: [m, n] floats, or bfloat16 where is_bf16; absmax: one float.
GQC_KERNEL(qgemm)(int64_t threads, const int8_t* a, const float* a_scale, const int8_t* b, const float* b_scale,
                  int64_t m, int64_t n, int64_t k, int64_t trans_a, int64_t trans_b, const float* bias, int64_t is_bf16,
                  void* out, float* absmax) {
    const Shape shape{m, n, k};
    const Operand left{a, trans_a ? m : k, !trans_a}, right{b, trans_b ? k : n, trans_b != 0};
    Error error = nullptr;
    typed(out, is_bf16, [&](auto* values) {
        const Epilogue<std::remove_pointer_t<decltype(values)>> epilogue{*a_scale * *b_scale, bias, values, n, absmax};
        error = !trans_a && k <= kExactProducts ? gemm_by_rows(threads, shape, a, right, epilogue)
                                                : gemm_by_contraction(threads, shape, left, right, epilogue);
    });
    return error;
}

}  // namespace gqc::GQC_ISA
