#include "shared.h"

#include <algorithm>
#include <deque>

#include "global.h"

namespace emu {
namespace {

constexpr size_t kMostBytes = 48 << 10;  // of a kernel that asks for no more
constexpr size_t kAlignment = 16;

alignas(kAlignment) unsigned char all_bytes[kMostBytes];
size_t used;
std::deque<SharedMemory> memories;

unsigned char* reserve(size_t bytes) {
    unsigned char* reserved = all_bytes + used;
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used > kMostBytes)
        fault("a block has " + std::to_string(kMostBytes) + " bytes of shared memory and needs " +
              std::to_string(used));
    return reserved;
}

struct Copy {
    SharedMemory* to;
    int64_t i;
    const void* from;  // null: zeros
    size_t group;
};
constexpr size_t kCopied = 16;

// Of a thread: copies that may not have happened yet, in order, and how many groups of copies have ended.
struct Copies {
    std::vector<Copy> pending;
    size_t groups = 0;
};
std::vector<Copies> copies(kMostThreads);

}  // namespace

SharedMemory::SharedMemory(const void* key, const char* name, size_t element, int64_t count)
    : key_(key),
      name_(name),
      element_(static_cast<int64_t>(element)),
      count_(count),
      bytes_(reserve(element * static_cast<size_t>(count))) {
    clear();
}

void SharedMemory::clear() {
    std::fill_n(bytes_, element_ * count_, 0xFF);  // NaN, or -1
    history_.assign(static_cast<size_t>(count_), History());
    being_copied_.assign(static_cast<size_t>(count_), false);
}

std::string SharedMemory::place(int64_t i, size_t bytes) const {
    return std::string(name_) + "[" + std::to_string(i) + "] of " + std::to_string(count_) + " elements (" +
           std::to_string(bytes) + " bytes)";
}

void* SharedMemory::access(Access access, int64_t i, size_t bytes, size_t alignment) {
    const int64_t begin = i * element_, end = begin + static_cast<int64_t>(bytes);
    if (i < 0 || end > count_ * element_) fault("shared memory out of range: " + place(i, bytes));
    if (begin % static_cast<int64_t>(alignment)) fault("misaligned access to shared memory: " + place(i, bytes));
    for (int64_t j = i; j * element_ < end; ++j) {
        History& history = history_[static_cast<size_t>(j)];
        if (being_copied_[static_cast<size_t>(j)])
            fault("access to shared memory while it is copied to, before the copy is waited for: " + place(i, bytes));
        if (access == Access::read && !history.is_written())
            fault("read of shared memory that nothing has written: " + place(i, bytes));
        if (const char* race = history.note(access)) fault(std::string(race) + "; shared memory " + place(i, bytes));
    }
    return bytes_ + begin;
}

void SharedMemory::begin_copy(int64_t i, size_t bytes) {
    access(Access::write, i, bytes, bytes);
    const auto first = being_copied_.begin() + i;
    std::fill(first, first + static_cast<int64_t>(bytes) / element_, true);
}

void SharedMemory::end_copy(int64_t i, const void* values, size_t bytes) {
    const auto first = being_copied_.begin() + i;
    std::fill(first, first + static_cast<int64_t>(bytes) / element_, false);
    std::memcpy(access(Access::write, i, bytes, bytes), values, bytes);
}

SharedMemory& shared_memory(const void* key, const char* name, size_t element, int64_t count) {
    for (SharedMemory& memory : memories)
        if (memory.key() == key) return memory;
    return memories.emplace_back(key, name, element, count);
}

void clear_shared_memory() {
    for (SharedMemory& memory : memories) memory.clear();
    for (Copies& of_thread : copies) {
        of_thread.pending.clear();
        of_thread.groups = 0;
    }
}

void free_shared_memory() {
    memories.clear();
    used = 0;
}

void copy_async(SharedMemory& to, int64_t i, const void* from, bool inside) {
    if (inside) access_global(Access::read, from, kCopied, kCopied);
    to.begin_copy(i, kCopied);
    Copies& mine = copies[static_cast<size_t>(thread->number)];
    mine.pending.push_back({&to, i, inside ? from : nullptr, mine.groups});
}

void end_copies() {
    ++copies[static_cast<size_t>(thread->number)].groups;
}

void wait_for_copies(int latest) {
    static const unsigned char zeros[kCopied] = {};
    Copies& mine = copies[static_cast<size_t>(thread->number)];
    auto copy = mine.pending.begin();
    for (; copy != mine.pending.end() && copy->group + static_cast<size_t>(latest) < mine.groups; ++copy)
        copy->to->end_copy(copy->i, copy->from ? copy->from : zeros, kCopied);
    mine.pending.erase(mine.pending.begin(), copy);
}

}  // namespace emu
