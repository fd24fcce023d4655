// Hands the rows of a product, or of two, to a pointwise program: the products themselves are never in memory.
#pragma once

#include "cpu/gemm/output.h"
#include "cpu/gemm/second_product.h"
#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {

// Input 0 of the program are the values rounded to `dtype`, input 1 likewise those of the second product, if it exists.
struct ProgramOutput {
    static constexpr bool kCollects = true, kFindsLargest = false;

    const Program& program;
    const SecondProduct& second;
    int64_t n;
    int64_t dtype;
    int64_t chunk_rows;
    bool first_look;

    class Worker {
      public:
        Worker(const ProgramOutput& output, int64_t block_rows)
            : output_(output), worker_(output.program, output.first_look), second_(output.second, block_rows) {}
        ~Worker() {
            if (ok()) worker_.merge();
        }
        bool ok() const { return worker_.ok() && second_.ok(); }
        float* values() const { return worker_.computed(); }

        void complete(int64_t i0, int64_t count) {
            const int64_t elements = count * output_.n;
            round_all(values(), elements, output_.dtype);
            if (output_.second.exists()) {
                second_.multiply(i0, count, worker_.computed(1));
                round_all(worker_.computed(1), elements, output_.dtype);
            }
            worker_.run(i0 * output_.n, elements, i0 / output_.chunk_rows);
        }

      private:
        const ProgramOutput& output_;
        Program::Worker worker_;
        SecondProduct::Worker second_;
    };
};

}  // namespace gqc::GQC_ISA
