// SDDMM: one row of output for each edge, from the rows of its operands.
#pragma once

#include "cpu/graph/edge_op.h"
#include "cpu/graph/features.h"
#include "cpu/graph/rows.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Features read by edges: edge i reads row rows[i] of data, or row i where rows is null. Values are data * scale.
template <typename T, typename Index>
struct EdgeOperand {
  const T* data;
  const Index* rows;
  float scale;

  const T* row(int64_t i, int64_t width) const { return data + (rows ? static_cast<int64_t>(rows[i]) : i) * width; }
};

template <typename A, typename B, typename Index>
struct EdgeMap {
  int64_t threads, edges;
  EdgeOperand<A, Index> lhs;
  EdgeOperand<B, Index> rhs;
  const FeatureLayout& layout;
  float* out;

  Error run(int64_t op) const {
    switch (op) {
      case kAdd:
        return with_steps([&](auto a, auto b) { return elementwise<Add, a, b>(lhs.scale, rhs.scale, 1.0f); });
      case kSub:
        return with_steps([&](auto a, auto b) { return elementwise<Sub, a, b>(lhs.scale, rhs.scale, 1.0f); });
      case kMul:
        return with_steps([&](auto a, auto b) { return elementwise<Mul, a, b>(1.0f, 1.0f, lhs.scale * rhs.scale); });
      case kDiv:
        return with_steps([&](auto a, auto b) { return elementwise<Div, a, b>(lhs.scale, rhs.scale, 1.0f); });
      case kDot:
        with_lanes(lanes_for(layout.length), [&](auto lanes) { dot<lanes>(); });
        return nullptr;
    }
    return kUnknownOp;
  }

  // Op of the scaled operands, times out_scale.
  template <typename Op, int StepA, int StepB>
  Error elementwise(float lhs_scale, float rhs_scale, float out_scale) const {
    const Chunks chunks(layout);
    if (!chunks.ok()) return kOutOfMemory;
    with_lanes(chunks.lanes, [&](auto lanes) {
      const int64_t width = layout.width();
#pragma omp parallel for num_threads(team(threads, edges * width)) schedule(static)
      for (int64_t i = 0; i < edges; ++i) {
        const A* a = lhs.row(i, layout.lhs_width);
        const B* b = Op::kReadsRhs ? rhs.row(i, layout.rhs_width) : nullptr;
        for (int64_t n = 0; n < chunks.count; ++n) {
          const Chunk& chunk = chunks.get()[n];
          auto x = fetch<float, lanes, StepA>(a + chunk.lhs) * lhs_scale;
          if constexpr (Op::kReadsRhs) x = Op::apply(x, fetch<float, lanes, StepB>(b + chunk.rhs) * rhs_scale);
          put(out + i * width + chunk.out, x * out_scale);
        }
      }
    });
    return nullptr;
  }

 private:
  template <typename Body>
  Error with_steps(const Body& body) const {
    using Zero = std::integral_constant<int, 0>;
    using One = std::integral_constant<int, 1>;
    if (layout.lhs_step == 0) return body(Zero(), One());
    return layout.rhs_step == 0 ? body(One(), Zero()) : body(One(), One());
  }

  template <int Lanes>
  void dot() const {
    const float scale = lhs.scale * rhs.scale;
#pragma omp parallel for num_threads(team(threads, edges * layout.width())) schedule(static)
    for (int64_t i = 0; i < edges; ++i) {
      const A* a = lhs.row(i, layout.lhs_width);
      const B* b = rhs.row(i, layout.rhs_width);
      for (int64_t r = 0; r < layout.runs; ++r) {
        out[i * layout.runs + r] =
            dot_of_run<Lanes>(a + layout.lhs_offsets[r], b + layout.rhs_offsets[r]) * scale;
      }
    }
  }

  template <int Lanes>
  float dot_of_run(const A* a, const B* b) const {
    constexpr bool kExact = std::is_same_v<A, int8_t> && std::is_same_v<B, int8_t>;
    using Sum = std::conditional_t<kExact, int32_t, float>;
    using Total = std::conditional_t<kExact, int64_t, float>;
    // At most kExactSums products in all lanes together.
    constexpr int64_t kBlock = 131072;
    Total total = 0;
    int64_t i = 0;
    while (i + Lanes <= layout.length) {
      Vector<Sum, Lanes> sum{};
      const int64_t end = layout.length - i < kBlock ? layout.length : i + kBlock;
      for (; i + Lanes <= end; i += Lanes) {
        sum += fetch<Sum, Lanes, 1>(a + i) * fetch<Sum, Lanes, 1>(b + i);
      }
      total += sum_of_lanes<Lanes, Sum>(sum);
    }
    for (; i < layout.length; ++i) {
      total += fetch<Sum, 1, 1>(a + i) * fetch<Sum, 1, 1>(b + i);
    }
    return static_cast<float>(total);
  }
};

}  // namespace gqc::GQC_ISA
