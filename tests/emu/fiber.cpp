#include "fiber.h"

#ifdef __x86_64__
// Saves what a function must keep, and continues where the other fiber did so.
extern "C" void emu_switch_stack(void** save, void* to);
asm(R"(
    .text
    .type emu_switch_stack, @function
emu_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch_stack, . - emu_switch_stack
)");
#endif

namespace emu {
namespace {
constexpr int kSavedRegisters = 6;

Fiber* arriving;  // the fiber that is being switched to
Fiber* leaving;   // and the one that did so
}  // namespace

struct FiberStart {
    static void run() {
        finish_switch(nullptr);
        arriving->run_();
    }

    static void finish_switch([[maybe_unused]] void* fake_stack) {
#ifdef GQC_SANITIZED
        __sanitizer_finish_switch_fiber(fake_stack, &leaving->stack_, &leaving->size_);
#endif
    }
};

void Fiber::prepare(void* stack, size_t size, void (*run)()) {
    run_ = run;
    stack_ = stack;
    size_ = size;
    constexpr size_t kOfLast = 4096;  // more than the frames that a fiber which has come to its end leaves behind
    forget_frames(static_cast<char*>(stack) + size - kOfLast, kOfLast);
#ifdef __x86_64__
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t{15});
    *--top = nullptr;  // the caller of `run`; also aligns the stack as after a call
    *--top = reinterpret_cast<void*>(&FiberStart::run);
    for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    stack_pointer_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = size;
    context_.uc_link = nullptr;
    makecontext(&context_, &FiberStart::run, 0);
#endif
}

void Fiber::forget_frames([[maybe_unused]] void* stack, [[maybe_unused]] size_t size) {
#ifdef GQC_SANITIZED
    __asan_unpoison_memory_region(stack, size);
#endif
}

void Fiber::switch_to(Fiber& to, Fiber& from, [[maybe_unused]] bool last) {
    arriving = &to;
    leaving = &from;
    void* fake_stack = nullptr;
#ifdef GQC_SANITIZED
    __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack, to.stack_, to.size_);
#endif
#ifdef __x86_64__
    emu_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#else
    swapcontext(&from.context_, &to.context_);
#endif
    FiberStart::finish_switch(fake_stack);
}

}  // namespace emu
