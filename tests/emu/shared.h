// Shared memory: arrays of a block, every access to which is checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "block.h"
#include "history.h"

namespace emu {

// What the threads of a block see under one GQC_SHARED.
class SharedMemory {
  public:
    // `key` stands for the declaration.
    SharedMemory(const void* key, const char* name, size_t element, int64_t count);

    const void* key() const { return key_; }

    // Address of `bytes` bytes from element i on, for an access that is all right.
    void* access(Access access, int64_t i, size_t bytes, size_t alignment);

    // As a new block finds it.
    void clear();

    // Makes the bytes unreadable until the copy that writes them has been waited for.
    void begin_copy(int64_t i, size_t bytes);
    void end_copy(int64_t i, const void* values, size_t bytes);

  private:
    std::string place(int64_t i, size_t bytes) const;

    const void* key_;
    const char* name_;
    int64_t element_;
    int64_t count_;
    unsigned char* bytes_;
    std::vector<History> history_;    // of each element
    std::vector<bool> being_copied_;  // each element
};

// The running block's memory of a declaration.
SharedMemory& shared_memory(const void* key, const char* name, size_t element, int64_t count);

// One element, as `array[i]` gives it.
template <typename T>
class SharedElement {
  public:
    SharedElement(SharedMemory& memory, int64_t i) : memory_(memory), i_(i) {}
    SharedElement(const SharedElement&) = default;

    operator T() const { return *static_cast<const T*>(access(Access::read)); }
    T operator=(T value) const { return *static_cast<T*>(access(Access::write)) = value; }
    T operator=(const SharedElement& other) const { return *this = static_cast<T>(other); }
    T operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
    T operator-=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
    T operator|=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) | value); }

    SharedElement operator&() const { return *this; }  // for atomics
    void* access(Access kind) const { return memory_.access(kind, i_, sizeof(T), alignof(T)); }

  private:
    SharedMemory& memory_;
    int64_t i_;
};

template <typename T>
class SharedArray {
  public:
    SharedArray(const void* key, const char* name, int64_t count)
        : memory_(shared_memory(key, name, sizeof(T), count)) {}
    SharedArray(const SharedArray&) = delete;

    SharedElement<T> operator[](int64_t i) const { return {memory_, i}; }
    SharedMemory& memory() const { return memory_; }

  private:
    SharedMemory& memory_;
};

// Copies of the running thread from global memory, 16 bytes each, that may happen at any time until it waits for them.
void copy_async(SharedMemory& to, int64_t i, const void* from, bool inside);
void end_copies();
void wait_for_copies(int latest);

// Before a block runs.
void clear_shared_memory();
// Before a kernel is launched, whose declarations are others.
void free_shared_memory();

}  // namespace emu

// All calls of a function share its array, as on a GPU.
#define GQC_SHARED(type, name, count)        \
    static const char gqc_key_of_##name = 0; \
    const ::emu::SharedArray<type> name(&gqc_key_of_##name, #name, count)

template <typename V, typename Array>
V shared_load(const Array& array, int64_t i) {
    return *static_cast<const V*>(array.memory().access(emu::Access::read, i, sizeof(V), alignof(V)));
}
template <typename V, typename Array>
void shared_store(const Array& array, int64_t i, V value) {
    *static_cast<V*>(array.memory().access(emu::Access::write, i, sizeof(V), alignof(V))) = value;
}
