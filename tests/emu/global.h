// Global memory: the tensors that a launch is given. The compiler calls a hook before every access (see hooks.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "block.h"
#include "history.h"

namespace emu {

// The memory behind one argument of a kernel.
class Tensor {
  public:
    Tensor(int argument, uintptr_t begin, size_t bytes, size_t element);

    bool has(uintptr_t address, size_t bytes) const { return address >= begin_ && address + bytes <= end_; }
    void note(Access access, uintptr_t address, size_t bytes);

    // Bytes between the address and this tensor.
    size_t distance(uintptr_t address) const;
    std::string place(uintptr_t address) const;

  private:
    int argument_;
    uintptr_t begin_;
    uintptr_t end_;
    size_t element_;
    std::vector<History> history_;  // of each element
};

// What the kernel may touch from now on.
void set_tensors(std::vector<Tensor> tensors);

// Notes an access of the running thread; a fault if it is wrong.
void access_global(Access access, const void* p, size_t bytes, size_t alignment);

template <typename V>
V read_unhooked(const void* p);
template <typename V>
void write_unhooked(void* p, V value);

}  // namespace emu

template <typename V>
V global_load(const void* p) {
    emu::access_global(emu::Access::read, p, sizeof(V), alignof(V));
    return emu::read_unhooked<V>(p);
}
template <typename V>
void global_store(void* p, V value) {
    emu::access_global(emu::Access::write, p, sizeof(V), alignof(V));
    emu::write_unhooked(p, value);
}

template <typename T>
T __ldg(const T* p) {
    return global_load<T>(p);
}

namespace emu {

template <typename V>
__attribute__((noinline, no_sanitize("thread"))) V read_unhooked(const void* p) {
    return *static_cast<const V*>(p);
}
template <typename V>
__attribute__((noinline, no_sanitize("thread"))) void write_unhooked(void* p, V value) {
    *static_cast<V*>(p) = value;
}

}  // namespace emu
