// The matrices of all types as right operands of products.
#pragma once

#include <cstdint>
#include <new>

#include "common/buffer.h"
#include "cpu/gemm/packed_right.h"

namespace gqc::GQC_ISA {

// b: [types, k, n], or [types, n, k] where transposed.
class PackedStack {
  public:
    PackedStack(int64_t threads, int64_t types, Shape shape, const int8_t* b, bool transposed)
        : types_(types), matrices_(types) {
        if (!matrices_.ok()) return;
        for (int64_t t = 0; t < types; ++t) {
            const int8_t* matrix = b + t * shape.k * shape.n;
            new (&matrices_[t]) PackedRight(shape, {matrix, transposed ? shape.k : shape.n, transposed});
            ok_ = ok_ && matrices_[t].ok();
        }
        if (!ok_) return;
#pragma omp parallel for num_threads(team(threads, types* shape.k* shape.n)) schedule(static)
        for (int64_t t = 0; t < types; ++t)
            for (int64_t j0 = 0; j0 < shape.n; j0 += kColumns) matrices_[t].pack(j0);
    }
    ~PackedStack() {
        for (int64_t t = 0; matrices_.ok() && t < types_; ++t) matrices_[t].~PackedRight();
    }
    PackedStack(const PackedStack&) = delete;
    PackedStack& operator=(const PackedStack&) = delete;

    bool ok() const { return matrices_.ok() && ok_; }
    const PackedRight& operator[](int64_t type) const { return matrices_[type]; }

  private:
    int64_t types_;
    bool ok_ = true;
    Buffer<PackedRight> matrices_;
};

}  // namespace gqc::GQC_ISA
