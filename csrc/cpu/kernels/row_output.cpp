// Writes rows of floats, see cpu/graph/row_output.h. It is no kernel, but part of several.

#include "cpu/graph/row_output.h"

#include <type_traits>

#include "common/buffer.h"
#include "common/scalar.h"
#include "cpu/write.h"

namespace gqc::GQC_ISA {
namespace {

class RowWriter {
  public:
    struct Job {
        const RowSums& sums;
        const RowOutput& output;
        int64_t width, block;
        bool streamed;
        int32_t* largest;
    };

    explicit RowWriter(const Job& job)
        : job_(job), tile_(job.block * job.width), rounded_(job.output.dtype ? job.block * job.width : 0) {}

    bool ok() const { return tile_.ok() && rounded_.ok(); }

    void block(int64_t first, int64_t last, int64_t /*part*/) {
        typed(job_.output.out, job_.output.dtype, [&](auto* out) { write(first, last, out + first * job_.width); });
    }

    void end() const {
        if (job_.streamed) end_stream();
        raise(job_.largest, seen_);
    }

  private:
    template <typename T>
    void write(int64_t first, int64_t last, T* out) {
        const int64_t count = (last - first) * job_.width;
        T* const scratch = reinterpret_cast<T*>(rounded_.get());
        float* const values = job_.streamed ? tile_.get() : floats_for(out, tile_.get());
        job_.sums(first, last, values);
        if (job_.output.factors) {
            if (!std::is_same_v<T, float>) {
                store_all(values, count, scratch);
                load_all(scratch, count, values);
            }
            scale(first, last, values);
        }
        int32_t largest = seen_;
        for (int64_t i = 0; i < count; ++i) {
            const int32_t m = static_cast<int32_t>(magnitude(values[i]));
            largest = m > largest ? m : largest;
        }
        seen_ = largest;
        write_all(values, count, out, scratch, job_.streamed);
    }

    void scale(int64_t first, int64_t last, float* values) const {
        for (int64_t v = first; v < last; ++v, values += job_.width) {
            const float factor = job_.output.factors[v];
            if (job_.output.divide)
                for (int64_t i = 0; i < job_.width; ++i) values[i] /= factor;
            else
                for (int64_t i = 0; i < job_.width; ++i) values[i] *= factor;
        }
    }

    const Job job_;
    const Buffer<float> tile_;
    const Buffer<uint16_t> rounded_;
    int32_t seen_ = 0;
};

}  // namespace

Error write_rows(int64_t threads, const BlocksOfRows& blocks, int64_t width, const RowSums& sums,
                 const RowOutput& output, float* largest) {
    int32_t seen = 0;
    const bool streamed = is_streamed(blocks.count * width * (output.dtype ? 2 : 4));
    const RowWriter::Job job{sums, output, width, blocks.block, streamed, &seen};
    const Error error = for_row_blocks<RowWriter>(threads, blocks, job);
    typed(output.out, output.dtype, [&](auto* out) {
        std::remove_pointer_t<decltype(out)> rounded;
        store(&rounded, float_of(static_cast<uint32_t>(seen)));
        *largest = load(rounded);
    });
    return error;
}

}  // namespace gqc::GQC_ISA
