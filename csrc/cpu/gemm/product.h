// A product with what follows its sums, in the form that fits its shape.
#pragma once

#include "cpu/gemm/contraction.h"
#include "cpu/gemm/rows.h"

namespace gqc::GQC_ISA {

// How a kernel is told what follows the sums.
struct Finish {
    const float* a_scale;
    const float* b_scale;
    const float* bias;       // n floats or null
    const float* row_scale;  // m floats or null
    bool relu;
};

class Product {
  public:
    // b: [k, n], or [n, k] where trans_b; packed 4-bit values or int8.
    Product(int64_t threads, Shape shape, bool trans_a, const void* b, bool b_packed, bool trans_b,
            const Finish& finish)
        : threads_(threads),
          shape_(shape),
          division_(shape),
          trans_a_(trans_a),
          right_{{b, trans_b ? shape.n : shape.k, trans_b ? shape.k : shape.n, b_packed}, trans_b},
          finish_(finish),
          bias_(finish.bias ? round_up(shape.n, kLanes) : 0),
          wide_(by_rows() ? 0 : shape.m * shape.n) {
        if (!finish.bias || !bias_.ok()) return;
        bias_.clear();
        std::memcpy(bias_.get(), finish.bias, static_cast<size_t>(shape.n) * sizeof(float));
    }

    bool ok() const { return bias_.ok() && wide_.ok(); }
    const Shape& shape() const { return shape_; }
    const Division& division() const { return division_; }
    const Factor& right() const { return right_; }
    bool by_rows() const { return !trans_a_ && shape_.k <= kExactProducts; }

    // a: [m, k], or [k, m] where trans_a. Call it before write, unless the product is by rows.
    Error contract_with(const void* a, bool a_packed) const {
        return contract(threads_, shape_, {left(a, a_packed), !trans_a_}, right_, wide_.get());
    }

    Matrix left(const void* a, bool a_packed) const {
        return {a, trans_a_ ? shape_.k : shape_.m, trans_a_ ? shape_.m : shape_.k, a_packed};
    }

    // Gives the largest magnitude of what is written, if the output asks for it. `rows` are read only if the product is
    // by rows.
    template <typename Rows, typename Output>
    Error write(const Rows& rows, const Output& output, uint32_t* largest = nullptr) const {
        if (by_rows()) return gemm_by_rows(threads_, shape_, division_, rows, right_, epilogue(), output, largest);
        return write_sums(shape_, division_, wide_.get(), epilogue(), output, largest);
    }

    // Call it when the scales are known.
    Epilogue epilogue() const {
        return {*finish_.a_scale * *finish_.b_scale, finish_.bias ? bias_.get() : nullptr, finish_.row_scale,
                finish_.relu};
    }

  private:
    int64_t threads_;
    Shape shape_;
    Division division_;
    bool trans_a_;
    Factor right_;
    Finish finish_;
    Buffer<float> bias_;  // in whole vectors
    Buffer<int64_t> wide_;
};

}  // namespace gqc::GQC_ISA
