// Hands the rows of a product to a pointwise program: the product itself is never in memory.
#pragma once

#include "cpu/gemm/output.h"
#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {

// Input 0 of the program are the values rounded to `dtype`.
struct ProgramOutput {
    static constexpr bool kCollects = true, kFindsLargest = false;

    const Program& program;
    int64_t n;
    int64_t dtype;
    int64_t chunk_rows;
    bool first_look;

    class Worker {
      public:
        Worker(const ProgramOutput& output, int64_t) : output_(output), worker_(output.program, output.first_look) {}
        ~Worker() {
            if (ok()) worker_.merge();
        }
        bool ok() const { return worker_.ok(); }
        float* values() const { return worker_.computed(); }

        void complete(int64_t i0, int64_t count) {
            const int64_t elements = count * output_.n;
            if (output_.dtype == kBfloat16) round_all<bfloat16>(values(), elements);
            if (output_.dtype == kFloat16) round_all<float16>(values(), elements);
            worker_.run(i0 * output_.n, elements, i0 / output_.chunk_rows);
        }

      private:
        const ProgramOutput& output_;
        Program::Worker worker_;
    };
};

}  // namespace gqc::GQC_ISA
