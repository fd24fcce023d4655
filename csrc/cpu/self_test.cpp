#include "cpu/self_test.h"

#include <cstring>
#include <initializer_list>

namespace self_test {
namespace {

constexpr int64_t kFloat32 = 0, kBfloat16 = 1;  // as in common/scalar.h
constexpr float kOne = 1;

class Random {
  public:
    int8_t byte() { return static_cast<int8_t>(static_cast<int32_t>(next() >> 8) % 255 - 127); }
    float between_ones() { return static_cast<float>(static_cast<int32_t>(next())) / (1u << 31); }

  private:
    uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }

    uint32_t state_ = 1;
};

// Floats that are sums without rounding, of which a zero may have either sign. Results start as zeros, lest a kernel
// that writes nothing finds those of another.
template <int64_t count>
bool are_equal(const float (&x)[count], const float (&y)[count]) {
    for (int64_t i = 0; i < count; ++i)
        if (!(x[i] == y[i])) return false;
    return true;
}

bool is_right(Qgemm* qgemm, Qgemm* portable) {
    constexpr int64_t kM = 37, kN = 35, kK = 70;
    int8_t a[kM * kK], b[kK * kN];
    Random random;
    for (int8_t& x : a) x = random.byte();
    for (int8_t& x : b) x = random.byte();
    for (const int64_t transposed : {0, 1}) {
        float got[kM * kN] = {}, want[kM * kN], absmax;
        const auto multiply = [&](Qgemm* kernel, float* out) {
            return kernel(1, a, &kOne, 0, b, &kOne, 0, kM, kN, kK, transposed, transposed, nullptr, nullptr, 0,
                          kFloat32, out, &absmax, nullptr);
        };
        if (multiply(qgemm, got) || multiply(portable, want) || !are_equal(got, want)) return false;
    }
    return true;
}

bool is_right(Quantize* quantize, Quantize* portable) {
    constexpr int64_t kCount = 1003, kSeed[] = {0x123456789abcdef, 42};
    float x[kCount];
    uint16_t halves[kCount];
    Random random;
    for (int64_t i = 0; i < kCount; ++i) {
        x[i] = random.between_ones();
        std::memcpy(&halves[i], reinterpret_cast<const char*>(&x[i]) + 2, sizeof halves[i]);
    }
    for (const bool stochastic : {false, true})
        for (const int64_t dtype : {kFloat32, kBfloat16}) {
            int8_t got[kCount] = {}, want[kCount];
            float got_scale = 0, want_scale;
            const auto round = [&](Quantize* kernel, int8_t* q, float* scale) {
                const void* const from = dtype == kFloat32 ? static_cast<const void*>(x) : halves;
                return kernel(1, from, dtype, kCount, nullptr, stochastic ? kSeed : nullptr, 3, 8, stochastic, q,
                              scale);
            };
            if (round(quantize, got, &got_scale) || round(portable, want, &want_scale)) return false;
            if (got_scale != want_scale || std::memcmp(got, want, sizeof got) != 0) return false;
        }
    return true;
}

bool is_right(Qspmm* qspmm, Qspmm* portable) {
    constexpr int64_t kCopy = 0, kSources = 20, kWidth = 100, kRows = 3, kEntries = 330;
    constexpr int32_t kIndptr[] = {0, 7, 7, kEntries};  // the last row has more entries than are added up in 16 bits
    int8_t x[kSources * kWidth];
    int32_t sources[kEntries];
    Random random;
    for (int8_t& each : x) each = random.byte();
    for (int32_t& each : sources) each = (random.byte() + 127) % kSources;
    // The mirror of FeatureLayout in cpu/graph/features.h.
    const int64_t start = 0;
    const struct {
        int64_t runs, length, lhs_width, rhs_width, lhs_step, rhs_step;
        const int64_t *lhs_offsets, *rhs_offsets;
    } layout{1, kWidth, kWidth, kWidth, 1, 1, &start, &start};
    float got[kRows * kWidth] = {}, want[kRows * kWidth], absmax;
    const auto add_up = [&](Qspmm* kernel, float* out) {
        return kernel(1, kCopy, 0, kRows, kEntries, kIndptr, x, sources, &kOne, nullptr, nullptr, nullptr, 0, &layout,
                      nullptr, 0, kFloat32, out, &absmax);
    };
    return !add_up(qspmm, got) && !add_up(portable, want) && are_equal(got, want);
}

template <int64_t features, int64_t logits>
struct Gradients {
    float u[features], el[logits], er[logits];
};

// Logits of 0 and four edges at either end of each node, so that every weight is 1/4 and no sum is rounded.
template <int64_t heads, int64_t width>
bool multiplies_heads(GatBwd* gat_bwd, GatBwd* portable) {
    constexpr int64_t kNodes = 8, kEdges = 4 * kNodes, kFeatures = kNodes * heads * width, kLogits = kNodes * heads;
    int32_t indptr[kNodes + 1], sources[kEdges], destinations[kEdges];
    for (int32_t v = 0; v <= kNodes; ++v) indptr[v] = 4 * v;
    for (int32_t edge = 0; edge < kEdges; ++edge) {
        constexpr int32_t kSteps[] = {0, 1, 3, 4};
        sources[edge] = (edge / 4 + kNodes - kSteps[edge % 4]) % kNodes;
        destinations[edge] = (edge / 4 + kSteps[edge % 4]) % kNodes;
    }
    int8_t u[kFeatures], grad[kFeatures];
    Random random;
    for (int8_t& each : u) each = random.byte();
    for (int8_t& each : grad) each = random.byte();
    const float zeros[kLogits] = {};
    float totals[kLogits];
    for (float& total : totals) total = 4;
    float statistics[4 * kLogits], absmax;
    Gradients<kFeatures, kLogits> got{}, want;
    const auto differentiate = [&](GatBwd* kernel, Gradients<kFeatures, kLogits>* to) {
        return kernel(1, 0, kNodes, kNodes, kEdges, indptr, sources, sources, indptr, destinations, destinations, zeros,
                      zeros, zeros, totals, u, &kOne, grad, &kOne, heads, width, .5f, nullptr, 0, 0, 1, statistics,
                      to->u, &absmax, to->el, to->er);
    };
    return !differentiate(gat_bwd, &got) && !differentiate(portable, &want) && are_equal(got.u, want.u) &&
           are_equal(got.el, want.el) && are_equal(got.er, want.er);
}

// Each way in which heads are cut into vectors.
bool is_right(GatBwd* gat_bwd, GatBwd* portable) {
    return multiplies_heads<4, 16>(gat_bwd, portable) && multiplies_heads<4, 32>(gat_bwd, portable) &&
           multiplies_heads<3, 37>(gat_bwd, portable);
}

}  // namespace

const char* first_wrong(const Kernels& kernels, const Kernels& portable) {
    if (kernels.qgemm && !is_right(kernels.qgemm, portable.qgemm)) return "qgemm";
    if (kernels.quantize && !is_right(kernels.quantize, portable.quantize)) return "quantize";
    if (kernels.qspmm && !is_right(kernels.qspmm, portable.qspmm)) return "qspmm";
    if (kernels.gat_bwd && !is_right(kernels.gat_bwd, portable.gat_bwd)) return "gat_bwd";
    return nullptr;
}

bool multiplies_bfloat16(Mm* mm) {
    constexpr int64_t kM = 37, kN = 35, kK = 70;
    constexpr double kMostError = 1. / (1 << 14);
    float a[kM * kK], b[kK * kN];
    Random random;
    for (float& x : a) x = random.between_ones();
    for (float& x : b) x = random.between_ones();
    for (const bool contracts_rows : {false, true}) {
        float got[kM * kN] = {};
        if (mm(1, a, b, kM, kN, kK, contracts_rows, !contracts_rows, nullptr, 0, 0, 1, got)) return false;
        for (int64_t i = 0; i < kM; ++i)
            for (int64_t j = 0; j < kN; ++j) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < kK; ++k) {
                    const double left = contracts_rows ? a[k * kM + i] : a[i * kK + k];
                    const double product = left * (contracts_rows ? b[k * kN + j] : b[j * kK + k]);
                    sum += product;
                    size += product < 0 ? -product : product;
                }
                const double error = got[i * kN + j] - sum;
                if (!(error <= kMostError * size && -error <= kMostError * size)) return false;
            }
    }
    return true;
}

}  // namespace self_test
