// The rows of float products, block by block, which threads share.
#pragma once

#include <omp.h>

#include "cpu/gemm/division.h"
#include "cpu/gemm/floats/product.h"
#include "cpu/gemm/output.h"

namespace gqc::GQC_ISA {

// For each thread a Output::Worker(output, rows of a block), which is told of its blocks by compute(i0, count).
template <typename Output>
Error for_float_blocks(int64_t threads, Shape shape, const Division& division, const Output& output) {
    bool ok = true;
#pragma omp parallel num_threads(team(threads, shape.m* shape.n* shape.k, kLeastProducts)) reduction(&& : ok)
    {
        typename Output::Worker worker(output, division.block_rows);
        ok = worker.ok();
#pragma omp for schedule(static)
        for (int64_t c = 0; c < division.chunks(); ++c) {
            if (ok) division.blocks_of(c, [&](int64_t i0, int64_t count) { worker.compute(i0, count); });
        }
        ok = worker.ok();
    }
    return ok ? nullptr : kOutOfMemory;
}

// Writes a product.
template <typename Product>
struct ProductRows {
    const Product& product;
    FloatOutput output;

    class Worker {
      public:
        Worker(const ProductRows& rows, int64_t block_rows)
            : product_(rows.product), writer_(rows.output, block_rows) {}
        bool ok() const { return product_.ok() && writer_.ok(); }

        void compute(int64_t i0, int64_t count) {
            product_.multiply(i0, count, writer_.values());
            writer_.complete(i0, count);
        }

      private:
        typename Product::Worker product_;
        FloatOutput::Worker writer_;
    };
};

}  // namespace gqc::GQC_ISA
