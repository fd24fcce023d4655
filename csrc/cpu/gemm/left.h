// Where the int8 rows of a left operand come from: memory, packed 4-bit values, or floats that are quantized as they
// are read. The rows of the next block are asked for before those of a block are multiplied.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "cpu/gemm/pack.h"
#include "cpu/rounding.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

struct StoredRows {
    Matrix matrix;

    class Worker {
      public:
        Worker(const StoredRows& rows, int64_t block_rows) : matrix_(rows.matrix), lines_(rows.matrix, block_rows) {}
        bool ok() const { return lines_.ok(); }
        const int8_t* read(int64_t i0, int64_t count) const {
            if (!matrix_.packed) prefetch(matrix_.line(i0 + count), count * matrix_.width);
            return lines_.read(i0, count);
        }

      private:
        Matrix matrix_;
        Lines lines_;
    };
};

// x: [m, k] of `dtype`; their int8 copy goes to q.
struct QuantizedRows {
    const void* x;
    int64_t dtype;
    int8_t* q;
    int64_t k;
    Rounding rounding;
    bool streamed;

    class Worker {
      public:
        Worker(const QuantizedRows& rows, int64_t block_rows)
            : rows_(rows), block_(rows.streamed ? block_rows * rows.k : 0) {}
        ~Worker() {
            if (rows_.streamed) end_stream();
        }
        bool ok() const { return block_.ok(); }

        // i0 is a multiple of kBlockBytes.
        const int8_t* read(int64_t i0, int64_t count) const {
            const int64_t first = i0 * rows_.k, elements = count * rows_.k;
            int8_t* const to = rows_.streamed ? block_.get() : rows_.q + first;
            typed(rows_.x, rows_.dtype, [&](auto* x) { round(x + first, first, elements, to); });
            if (rows_.streamed) stream(to, elements, rows_.q + first);
            return to;
        }

      private:
        // Asks for the next block a piece at a time, between which the core computes.
        template <typename T>
        void round(const T* x, int64_t first, int64_t count, int8_t* to) const {
            for (int64_t at = 0; at < count; at += kRoundedChunk) {
                const int64_t each = count - at < kRoundedChunk ? count - at : kRoundedChunk;
                prefetch(x + count + at, each * static_cast<int64_t>(sizeof(T)));
                rows_.rounding.apply(x + at, first + at, each, to + at);
            }
        }

        const QuantizedRows& rows_;
        Buffer<int8_t> block_;
    };
};

}  // namespace gqc::GQC_ISA
