// Where the sums of a matrix's rows go.
#pragma once

#include "common/scalar.h"
#include "cpu/graph/vector.h"

namespace gqc::GQC_ISA {

// Rows of elements of a dtype. The sums of row v are rounded to it; where there are factors, they are multiplied with
// factors[v], or divided by it, and rounded again, as if by an op of its own.
struct RowOutput {
    void* out;
    int64_t dtype;
    const float* factors;  // or null
    int64_t divide;

    // Writes `sum` of row `row` to the elements from `at` on and returns their values.
    template <int Lanes>
    Vector<float, Lanes> put_sums(Vector<float, Lanes> sum, int64_t row, int64_t at) const {
        if (dtype != kFloat32 || factors) return put_rounded<Lanes>(sum, row, at);
        put(static_cast<float*>(out) + at, sum);
        return sum;
    }

  private:
    template <int Lanes>
    __attribute__((noinline)) Vector<float, Lanes> put_rounded(Vector<float, Lanes> sum, int64_t row,
                                                               int64_t at) const {
        typed(out, dtype, [&](auto* to) {
            sum = put_as<Lanes>(to + at, sum);
            if (factors) sum = put_as<Lanes>(to + at, divide ? sum / factors[row] : sum * factors[row]);
        });
        return sum;
    }

    template <int Lanes, typename T>
    static Vector<float, Lanes> put_as(T* to, Vector<float, Lanes> x) {
        float values[Lanes];
        put(values, x);
        if constexpr (std::is_same_v<T, float>) {
            put(to, x);
        } else {
            store_all(values, Lanes, to);
            load_all(to, Lanes, values);
        }
        return fetch<float, Lanes, 1>(values);
    }
};

}  // namespace gqc::GQC_ISA
