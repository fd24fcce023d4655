#include "global.h"

#include <algorithm>
#include <utility>

namespace emu {
namespace {

std::vector<Tensor> tensors;
Tensor* latest;  // the one that was found last

Tensor& find(Access access, uintptr_t address, size_t bytes) {
    if (latest && latest->has(address, bytes)) return *latest;
    for (Tensor& tensor : tensors)
        if (tensor.has(address, bytes)) return *(latest = &tensor);
    const std::string what = std::string(access == Access::read ? "read" : "write") + " of " + std::to_string(bytes) +
                             " bytes of global memory out of range: ";
    if (tensors.empty()) fault(what + "the kernel is given no memory");
    const auto nearer = [=](const Tensor& a, const Tensor& b) { return a.distance(address) < b.distance(address); };
    fault(what + std::min_element(tensors.begin(), tensors.end(), nearer)->place(address));
}

}  // namespace

Tensor::Tensor(int argument, uintptr_t begin, size_t bytes, size_t element)
    : argument_(argument), begin_(begin), end_(begin + bytes), element_(element), history_(bytes / element) {}

void Tensor::note(Access access, uintptr_t address, size_t bytes) {
    const size_t first = (address - begin_) / element_, last = (address - begin_ + bytes - 1) / element_;
    for (size_t i = first; i <= last; ++i)
        if (const char* race = history_[i].note(access)) fault(std::string(race) + "; global memory " + place(address));
}

size_t Tensor::distance(uintptr_t address) const {
    return address < begin_ ? begin_ - address : address - std::min(address, end_ - 1);
}

std::string Tensor::place(uintptr_t address) const {
    const std::string tensor =
        " of argument " + std::to_string(argument_) + ", which has " + std::to_string(end_ - begin_) + " bytes";
    if (address < begin_) return std::to_string(begin_ - address) + " bytes before the begin" + tensor;
    return "byte " + std::to_string(address - begin_) + tensor;
}

void set_tensors(std::vector<Tensor> all) {
    tensors = std::move(all);
    latest = nullptr;
}

void access_global(Access access, const void* p, size_t bytes, size_t alignment) {
    const auto address = reinterpret_cast<uintptr_t>(p);
    Tensor& tensor = find(access, address, bytes);
    if (address % alignment)
        fault("misaligned access to global memory, " + std::to_string(bytes) + " bytes: " + tensor.place(address));
    tensor.note(access, address, bytes);
}

}  // namespace emu
