// The rows of a float matrix that a product reads.
#pragma once

#include <cstring>

#include "cpu/float24.h"
#include "cpu/gemm/pack.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

// `width` elements a row, in float32 one row behind the other or in rows of float24.
struct FloatMatrix {
    const void* data;  // or null: there is no matrix
    int64_t width;
    bool narrow;  // float24

    const float* row(int64_t i) const { return static_cast<const float*>(data) + i * width; }
    const float24* narrow_row(int64_t i) const { return row24(data, i, width); }

    int64_t bytes_of_row() const {
        return narrow ? bytes_of_row24(width) : width * static_cast<int64_t>(sizeof(float));
    }
    const char* bytes(int64_t i) const { return static_cast<const char*>(data) + i * bytes_of_row(); }

    void load(int64_t i, float* __restrict to) const {
        if (narrow)
            load_row(narrow_row(i), width, to);
        else
            std::memcpy(to, row(i), static_cast<size_t>(width) * sizeof *to);
    }

    void ask_for(int64_t i, int64_t rows) const { prefetch(bytes(i), rows * bytes_of_row()); }
};

// Asks for `count` rows, a share each time.
class Ahead {
  public:
    Ahead(const FloatMatrix& x, int64_t row, int64_t count, int64_t times)
        : at_(x.bytes(row)),
          left_(count * x.bytes_of_row()),
          share_(round_up((left_ + times - 1) / times, kVectorBytes)) {}

    void ask() {
        const int64_t bytes = left_ < share_ ? left_ : share_;
        prefetch(at_, bytes);
        at_ += bytes;
        left_ -= bytes;
    }

  private:
    const char* at_;
    int64_t left_, share_;
};

}  // namespace gqc::GQC_ISA
