// What GCC and clang call before each access to memory in kernels, which are compiled with -fsanitize=thread for that
// and are not linked with ThreadSanitizer. Alignment is that of the access: a GPU knows no other.

#include <cstddef>
#include <cstdint>

#include "block.h"
#include "global.h"

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start, _end;  // of this library, by the linker

namespace {

bool is_global(const void* p) {
    static const auto stacks = emu::stacks();
    const char* address = static_cast<const char*>(p);
    const bool is_stack = static_cast<size_t>(address - stacks.first) < stacks.second;
    const bool is_ours = address >= &__ehdr_start && address < &_end;  // constants, shared memory, the emulator's own
    return !is_stack && !is_ours && emu::thread;
}

void access(emu::Access access, const void* p, size_t bytes, size_t alignment) {
    if (is_global(p)) emu::access_global(access, p, bytes, alignment);
}

}  // namespace

#define GQC_HOOKS(bytes)                             \
    void __tsan_read##bytes(void* p) {               \
        access(emu::Access::read, p, bytes, bytes);  \
    }                                                \
    void __tsan_write##bytes(void* p) {              \
        access(emu::Access::write, p, bytes, bytes); \
    }                                                \
    void __tsan_unaligned_read##bytes(void* p) {     \
        access(emu::Access::read, p, bytes, 1);      \
    }                                                \
    void __tsan_unaligned_write##bytes(void* p) {    \
        access(emu::Access::write, p, bytes, 1);     \
    }

extern "C" {
GQC_HOOKS(1)
GQC_HOOKS(2)
GQC_HOOKS(4)
GQC_HOOKS(8)
GQC_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) {
    access(emu::Access::read, p, bytes, 1);
}
void __tsan_write_range(void* p, size_t bytes) {
    access(emu::Access::write, p, bytes, 1);
}
void __tsan_vptr_update(void*, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
