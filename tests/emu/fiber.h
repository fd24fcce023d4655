// Functions that can be suspended: each has a stack of its own, and one of them runs at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef GQC_SANITIZED
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#    include <ucontext.h>
#endif

namespace emu {

class Fiber {
  public:
    // Makes the next switch to this fiber call `run`, which must not return, on the given stack.
    void prepare(void* stack, size_t size, void (*run)());

    // Suspends the running fiber, which must be `from`, until someone switches back to it. `last`: nobody will.
    static void switch_to(Fiber& to, Fiber& from, bool last = false);

    // AddressSanitizer keeps red zones between the variables of functions that never return.
    static void forget_frames(void* stack, size_t size);

  private:
    friend struct FiberStart;

#ifdef __x86_64__
    void* stack_pointer_ = nullptr;
#else
    ucontext_t context_;
#endif
    void (*run_)() = nullptr;
    const void* stack_ = nullptr;  // its lowest address; of a fiber that was not prepared, known to ASan alone
    size_t size_ = 0;
};

}  // namespace emu
