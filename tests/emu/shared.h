// Shared memory: arrays of a block, of which every access is checked.
#pragma once

#include <cstdint>
#include <string>

#include "block.h"

namespace emu {

// One element, as `array[i]` gives it.
template <typename Array>
class SharedElement {
    using T = typename Array::Element;

  public:
    SharedElement(const Array& array, int64_t i) : array_(array), i_(i) {}
    SharedElement(const SharedElement&) = default;

    operator T() const { return array_.template load<T>(i_); }
    T operator=(T value) const {
        array_.template store<T>(i_, value);
        return value;
    }
    T operator=(const SharedElement& other) const { return *this = static_cast<T>(other); }
    T operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
    T operator-=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
    T operator|=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) | value); }

    // For atomics.
    SharedElement operator&() const { return *this; }
    template <typename Update>
    T update(Update f) const {
        return array_.update(i_, f);
    }

  private:
    const Array& array_;
    int64_t i_;
};

template <typename T>
class SharedArray {
  public:
    using Element = T;

    SharedArray(const void* key, const char* name, int64_t count)
        : memory_(block->shared_memory(key, static_cast<size_t>(count) * sizeof(T))), name_(name), count_(count) {}
    SharedArray(const SharedArray&) = delete;

    SharedElement<SharedArray> operator[](int64_t i) const { return {*this, i}; }

    template <typename V>
    V load(int64_t i) const {
        check<V>(i);
        V value;
        std::memcpy(&value, &memory_.bytes[0] + i * sizeof(T), sizeof value);
        return value;
    }
    template <typename V>
    void store(int64_t i, V value) const {
        check<V>(i);
        std::memcpy(&memory_.bytes[0] + i * sizeof(T), &value, sizeof value);
    }
    template <typename Update>
    T update(int64_t i, Update f) const {
        const T before = load<T>(i);
        store<T>(i, f(before));
        return before;
    }

  private:
    template <typename V>
    void check(int64_t i) const {
        const int64_t end = i * static_cast<int64_t>(sizeof(T)) + static_cast<int64_t>(sizeof(V));
        if (i < 0 || end > count_ * static_cast<int64_t>(sizeof(T)))
            fault("shared memory out of range: " + std::to_string(sizeof(V)) + " bytes at " + place(i) + " of " +
                  std::to_string(count_));
        if (i * sizeof(T) % alignof(V))
            fault("misaligned access to shared memory: " + std::to_string(sizeof(V)) + " bytes at " + place(i));
    }
    std::string place(int64_t i) const { return std::string(name_) + "[" + std::to_string(i) + "]"; }

    SharedMemory& memory_;
    const char* name_;
    int64_t count_;
};

}  // namespace emu

// All calls of a function share its array, as on a GPU.
#define GQC_SHARED(type, name, count)        \
    static const char gqc_key_of_##name = 0; \
    const ::emu::SharedArray<type> name(&gqc_key_of_##name, #name, count)

template <typename V, typename Array>
V shared_load(const Array& array, int64_t i) {
    return array.template load<V>(i);
}
template <typename V, typename Array>
void shared_store(const Array& array, int64_t i, V value) {
    array.template store<V>(i, value);
}
