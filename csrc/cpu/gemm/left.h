// Where the int8 rows of a left operand come from: memory, packed 4-bit values, or floats that are quantized as they
// are read.
#pragma once

#include <cstdint>

#include "cpu/gemm/pack.h"
#include "cpu/rounding.h"

namespace gqc::GQC_ISA {

struct StoredRows {
    Matrix matrix;

    class Worker {
      public:
        Worker(const StoredRows& rows, int64_t block_rows) : lines_(rows.matrix, block_rows) {}
        bool ok() const { return lines_.ok(); }
        const int8_t* read(int64_t i0, int64_t count) const { return lines_.read(i0, count); }

      private:
        Lines lines_;
    };
};

// x: [m, k] floats; their int8 copy goes to q.
template <typename T>
struct QuantizedRows {
    const T* x;
    int8_t* q;
    int64_t k;
    Rounding rounding;

    class Worker {
      public:
        Worker(const QuantizedRows& rows, int64_t) : rows_(rows) {}
        bool ok() const { return true; }
        // i0 is a multiple of kBlockElements.
        const int8_t* read(int64_t i0, int64_t count) const {
            const int64_t first = i0 * rows_.k;
            rows_.rounding.apply(rows_.x + first, first, count * rows_.k, rows_.q + first);
            return rows_.q + first;
        }

      private:
        const QuantizedRows& rows_;
    };
};

}  // namespace gqc::GQC_ISA
