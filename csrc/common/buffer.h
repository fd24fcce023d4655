// Scratch memory of a kernel, on cache line boundaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/kernel.h"

namespace gqc::GQC_ISA {

template <typename T>
class Buffer {
  public:
    explicit Buffer(int64_t count)
        : bytes_((static_cast<size_t>(count) * sizeof(T) + 127) / 64 * 64),
          data_(static_cast<T*>(std::aligned_alloc(64, bytes_))) {}
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // False when there was no memory; the kernel then returns kOutOfMemory.
    bool ok() const { return data_ != nullptr; }
    T* get() const { return data_; }
    T& operator[](int64_t i) const { return data_[i]; }
    void clear() const { std::memset(data_, 0, bytes_); }

  private:
    size_t bytes_;
    T* data_;
};

}  // namespace gqc::GQC_ISA
