#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

namespace emu {

Block* block;
Thread* thread;

namespace {

struct Fault {
    std::string what;
};

// One stack a thread, with a page below it that faults when it overflows, kept from launch to launch.
class Stacks {
  public:
    static constexpr size_t kSize = 256 << 10;

    char* operator[](int i) {
        if (!memory_) map();
        return memory_ + i * (kSize + kGuard) + kGuard;
    }

  private:
    static constexpr size_t kGuard = 4096 * 16;  // a page of any architecture

    void map() {
        const size_t all = kMostThreads * (kSize + kGuard);
        void* memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<char*>(memory);
        for (int i = 0; i < kMostThreads; ++i) mprotect((*this)[i] - kGuard, kGuard, PROT_NONE);
    }

    char* memory_ = nullptr;
};
Stacks stacks;

std::string of(uint3 i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

}  // namespace

void fault(const std::string& what) {
    throw Fault{what};
}

Block::Block(const Launch& launch)
    : launch(launch),
      count_(static_cast<int>(launch.block.x * launch.block.y * launch.block.z)),
      threads_(count_),
      warps_((count_ + kLanes - 1) / kLanes),
      random_(launch.seed * 0x9E3779B97F4A7C15u | 1) {
    block = this;
}

Block::~Block() {
    block = nullptr;
    thread = nullptr;
}

uint32_t Block::random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<uint32_t>(random_ >> 32);
}

std::string Request::where() const {
    return std::string(name) + "() of " + at.text();
}

std::string Block::run(uint3 index) {
    this->index = index;
    start_threads();
    thread = next();
    Fiber::switch_to(thread->fiber, scheduler_);
    if (error_.empty() && left_ < count_) error_ = "deadlock: " + who_waits() + "; block " + of(index);
    return error_;
}

void Block::start_threads() {
    at_barrier_ = left_ = 0;
    for (SharedMemory& memory : shared_) std::fill(memory.bytes.begin(), memory.bytes.end(), 0xFF);
    std::fill(std::begin(ready_), std::end(ready_), 0);
    for (size_t w = 0; w < warps_.size(); ++w) warps_[w] = {&threads_[w * kLanes], 0, 0};
    for (int i = 0; i < count_; ++i) {
        Thread& t = threads_[i];
        const unsigned x = launch.block.x, y = launch.block.y, n = static_cast<unsigned>(i);
        t.index = {n % x, n / x % y, n / (x * y)};
        t.number = i;
        t.lane = i % kLanes;
        t.warp = &warps_[i / kLanes];
        // Stacks that began at equal offsets of their pages would share few sets of the cache.
        t.fiber.prepare(stacks[i], Stacks::kSize - (i * 5 % 64) * 64, &Block::run_thread);
        set_ready(t);
    }
}

void Block::run_thread() {
    try {
        block->launch.call(block->launch.arguments);
        block->leave();
    } catch (const Fault& fault) {
        block->error_ = fault.what + "; block " + of(block->index) + ", thread " + of(thread->index);
    }
    block->pass_on(block->error_.empty() ? block->next() : nullptr, true);
    std::abort();
}

void Block::leave() {
    Warp& warp = *thread->warp;
    thread->state = State::left;
    ready_[thread->number / 64] &= ~(uint64_t{1} << thread->number % 64);
    warp.left |= 1u << thread->lane;
    ++left_;
    if (at_barrier_) fault("thread leaves while others wait at __syncthreads() of " + barrier_.text());
    for (int lane = 0; lane < kLanes; ++lane) {
        const Request& request = warp.lanes[lane].request;
        if (warp.waiting >> lane & 1 && request.mask >> thread->lane & 1)
            fault("lane leaves while others wait for it at " + request.where());
    }
}

void Block::barrier(Location at) {
    if (left_) fault("__syncthreads() of " + at.text() + " after threads have left");
    if (at_barrier_ == 0)
        barrier_ = at;
    else if (barrier_ != at)
        fault("threads meet at different __syncthreads(): " + barrier_.text() + " and " + at.text());
    if (++at_barrier_ < count_) return wait(State::at_barrier);
    at_barrier_ = 0;
    for (Thread& t : threads_) set_ready(t);
}

void Block::collective() {
    Warp& warp = *thread->warp;
    const Request& request = thread->request;
    const uint32_t self = 1u << thread->lane, mask = request.mask;
    if (!(mask & self)) fault(request.where() + ": the lane is not in its own mask");
    if (mask & warp.left) fault(request.where() + ": the mask names a lane that has left");
    if (const uint32_t there = warp.waiting & mask) {
        const Request& other = warp.lanes[__builtin_ctz(there)].request;
        if (other.mask == mask && (other.at != request.at || std::strcmp(other.name, request.name)))
            fault("lanes meet at different collectives: " + other.where() + " and " + request.where());
    }
    bool complete = ((warp.waiting | self) & mask) == mask;
    for (int lane = 0; complete && lane < kLanes; ++lane)
        complete = !(mask >> lane & 1) || warp.lanes[lane].request.mask == mask;
    warp.waiting |= self;
    if (!complete) return wait(State::at_collective);
    warp.waiting &= ~mask;
    request.meet(warp, mask);
    for (int lane = 0; lane < kLanes; ++lane)
        if (mask >> lane & 1) set_ready(warp.lanes[lane]);
}

void Block::set_ready(Thread& t) {
    t.state = State::ready;
    ready_[t.number / 64] |= uint64_t{1} << t.number % 64;
}

void Block::wait(State state) {
    thread->state = state;
    ready_[thread->number / 64] &= ~(uint64_t{1} << thread->number % 64);
    pass_on(next(), false);
}

Thread* Block::next() {
    constexpr int kWords = kMostThreads / 64;
    if (launch.order == Order::descending) {
        for (int w = kWords - 1; w >= 0; --w)
            if (ready_[w]) return &threads_[w * 64 + 63 - __builtin_clzll(ready_[w])];
        return nullptr;
    }
    int first = 0;
    if (launch.order == Order::random) {  // the first one from a random place on
        const int place = static_cast<int>(random() % static_cast<unsigned>(count_));
        first = place / 64;
        const uint64_t above = ready_[first] >> place % 64;
        if (above) return &threads_[place + __builtin_ctzll(above)];
        first = (first + 1) % kWords;
    }
    for (int i = 0; i < kWords; ++i) {
        const int w = (first + i) % kWords;
        if (ready_[w]) return &threads_[w * 64 + __builtin_ctzll(ready_[w])];
    }
    return nullptr;
}

void Block::pass_on(Thread* to, bool last) {
    Fiber& from = thread->fiber;
    thread = to;
    Fiber::switch_to(to ? to->fiber : scheduler_, from, last);
}

std::string Block::who_waits() const {
    std::string text = std::to_string(at_barrier_) + " threads wait at __syncthreads()";
    if (at_barrier_) text += " of " + barrier_.text();
    for (const Thread& t : threads_)
        if (t.state == State::at_collective)
            return text + ", thread " + std::to_string(t.number) + " waits at " + t.request.where() + ", " +
                   std::to_string(left_) + " have left";
    return text + ", " + std::to_string(left_) + " have left";
}

}  // namespace emu
