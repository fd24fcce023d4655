// A product of stored int8 rows of which another product's worker computes the rows that it has just computed itself.
#pragma once

#include <cstdint>

#include "cpu/gemm/left.h"
#include "cpu/gemm/product.h"
#include "cpu/gemm/row_block.h"

namespace gqc::GQC_ISA {

// The arguments of a kernel that stand for one.
struct SecondOperands {
    const int8_t* a;  // [m, k], or null: there is no second product
    const float* a_scale;
    const int8_t* b;  // [k, n], or [n, k] where trans_b
    const float* b_scale;
    const float* bias;  // n floats or null
    int64_t k;          // at most kExactProducts
    int64_t trans_b;
};

class SecondProduct {
  public:
    // Of m rows and n columns, as the first one.
    SecondProduct(int64_t threads, int64_t m, int64_t n, const SecondOperands& x)
        : exists_(x.a_scale != nullptr),
          product_(threads, {m, exists_ ? n : 0, x.k}, false, x.b, false, x.trans_b != 0,
                   {x.a_scale, x.b_scale, x.bias, nullptr, false}),
          rows_{product_.left(x.a, false)},
          packed_(product_.shape(), operand()) {
        if (!ok()) return;
        for (int64_t j0 = 0; j0 < product_.shape().n; j0 += kColumns) packed_.pack(j0);
    }

    bool exists() const { return exists_; }
    bool ok() const { return product_.ok() && packed_.ok(); }

    class Worker {
      public:
        Worker(const SecondProduct& second, int64_t block_rows)
            : second_(second),
              rows_(second.rows_, block_rows),
              block_(second.exists_ ? block_rows : 0, second.product_.shape().k) {}
        bool ok() const { return rows_.ok() && block_.ok(); }

        // values[count, n] = rows i0 .. i0 + count.
        void multiply(int64_t i0, int64_t count, float* values) {
            Largest none;
            block_.load(rows_.read(i0, count), count);
            multiply_block<true, false>(block_, second_.packed_, second_.product_.shape().n,
                                        second_.product_.epilogue(), i0, count, values, &none);
        }

      private:
        const SecondProduct& second_;
        StoredRows::Worker rows_;
        LeftBlock block_;
    };

  private:
    Operand operand() const {
        const Factor& right = product_.right();
        return {right.matrix.line(0), right.matrix.width, right.k_contiguous};
    }

    const bool exists_;
    const Product product_;
    const StoredRows rows_;
    const PackedRight packed_;
};

}  // namespace gqc::GQC_ISA
