// Gives the sums of a matrix's rows to a pointwise program, tile by tile, so that they never are in memory.
#pragma once

#include <type_traits>

#include "cpu/graph/row_blocks.h"
#include "cpu/graph/row_sums.h"
#include "cpu/pointwise/program.h"

namespace gqc::GQC_ISA {

// The arguments of a Program whose input 0 are the sums, rounded to a dtype.
struct ProgramArguments {
    int64_t dtype;
    const int64_t* numbers;
    const void* const* inputs;
    void* const* outputs;
    const int64_t* seed;
};

class ProgramRows {
  public:
    struct Job {
        const RowSums& sums;
        const Program& program;
        int64_t width, block, dtype;
    };

    explicit ProgramRows(const Job& job)
        : job_(job), worker_(job.program, false), rounded_(job.dtype ? job.block * job.width : 0) {}

    bool ok() const { return worker_.ok() && rounded_.ok(); }

    void block(int64_t first, int64_t last, int64_t part) {
        const int64_t count = (last - first) * job_.width;
        float* const values = worker_.computed();
        job_.sums(first, last, values);
        typed(rounded_.get(), job_.dtype, [&](auto* rounded) {
            if constexpr (!std::is_same_v<decltype(rounded), float*>) {
                store_all(values, count, rounded);
                load_all(rounded, count, values);
            }
        });
        worker_.run(first * job_.width, count, part);
    }

    void end() const { worker_.merge(); }

  private:
    const Job job_;
    Program::Worker worker_;
    const Buffer<uint16_t> rounded_;
};

// Runs a program without int8 results, for which all rows would be added up twice, on all rows.
inline Error run_on_rows(int64_t threads, const BlocksOfRows& blocks, int64_t width, const RowSums& sums,
                         const ProgramArguments& arguments) {
    Program program(arguments.numbers, arguments.inputs, arguments.outputs, arguments.seed, blocks.block * width,
                    blocks.parts);
    if (const Error error = program.error()) return error;
    const ProgramRows::Job job{sums, program, width, blocks.block, arguments.dtype};
    if (const Error error = for_row_blocks<ProgramRows>(threads, blocks, job)) return error;
    program.finish();
    return nullptr;
}

}  // namespace gqc::GQC_ISA
