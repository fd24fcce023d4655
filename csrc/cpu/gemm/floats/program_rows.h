// Hands the rows of a float product, or of two, to a pointwise program.
#pragma once

#include "cpu/gemm/floats/rows.h"
#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {

// Input 0 of the program is the first product, input 1 the second one, if it exists.
template <typename Product>
struct ProgramRows {
    const Program& program;
    const Product &first, &second;
    int64_t chunk_rows;
    bool first_look;

    class Worker {
      public:
        Worker(const ProgramRows& rows, int64_t)
            : rows_(rows), worker_(rows.program, rows.first_look), first_(rows.first), second_(rows.second) {}
        ~Worker() {
            if (ok()) worker_.merge();
        }
        bool ok() const { return worker_.ok() && first_.ok() && second_.ok(); }

        void compute(int64_t i0, int64_t count) {
            const int64_t n = rows_.first.shape().n;
            first_.multiply(i0, count, worker_.computed());
            if (rows_.second.exists()) second_.multiply(i0, count, worker_.computed(1));
            worker_.run(i0 * n, count * n, i0 / rows_.chunk_rows);
        }

      private:
        const ProgramRows& rows_;
        Program::Worker worker_;
        typename Product::Worker first_, second_;
    };
};

}  // namespace gqc::GQC_ISA
