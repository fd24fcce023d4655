#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "frames.h"
#include "shared.h"

namespace emu {

Block block;
Thread* thread;

namespace {

// One stack a thread, with a page below it that faults when it overflows.
constexpr size_t kStack = 256 << 10;
constexpr size_t kGuard = 64 << 10;  // the largest page of any architecture
constexpr size_t kStacks = kMostThreads * (kStack + kGuard);

char* map_stacks() {
    void* memory = mmap(nullptr, kStacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    for (size_t guard = 0; guard < kStacks; guard += kStack + kGuard)
        mprotect(static_cast<char*>(memory) + guard, kGuard, PROT_NONE);
    return static_cast<char*>(memory);
}
char* const all_stacks = map_stacks();

char* stack(int i) {
    return all_stacks + i * (kStack + kGuard) + kGuard;
}

}  // namespace

std::pair<const char*, size_t> stacks() {
    return {all_stacks, kStacks};
}

std::string text(uint3 i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

std::string Request::where() const {
    return std::string(name) + "() of " + at.text();
}

void Warp::synchronize(uint32_t mask) {
    uint32_t all[kLanes] = {};
    for (int lane = 0; lane < kLanes; ++lane)
        if (mask >> lane & 1)
            for (int other = 0; other < kLanes; ++other) all[other] = std::max(all[other], known[lane][other]);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(mask >> lane & 1)) continue;
        std::copy(std::begin(all), std::end(all), known[lane]);
        ++known[lane][lane];
    }
}

void Block::prepare(const Launch& launch) {
    this->launch = launch;
    count_ = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    random_ = launch.seed * 0x9E3779B97F4A7C15u | 1;
    epoch_ = 0;
    starts_.clear();
    error_.clear();
}

uint32_t Block::random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<uint32_t>(random_ >> 32);
}

uint3 Block::index_at(uint32_t epoch) const {
    const auto later = [](uint32_t e, const std::pair<uint32_t, uint3>& start) { return e < start.first; };
    return std::prev(std::upper_bound(starts_.begin(), starts_.end(), epoch, later))->second;
}

std::string Block::run(uint3 index) {
    this->index = index;
    starts_.emplace_back(++epoch_, index);
    clear_shared_memory();
    start_threads();
    thread = next();
    Fiber::switch_to(thread->fiber, scheduler_);
    if (error_.empty() && left_ < count_) error_ = "deadlock: " + who_waits() + "; block " + text(index);
    for (int i = 0; !error_.empty() && i < count_; ++i) Fiber::forget_frames(stack(i), kStack);
    return error_;
}

void Block::start_threads() {
    at_barrier_ = left_ = 0;
    std::fill(std::begin(ready_), std::end(ready_), 0);
    for (int w = 0; w < count_ / kLanes; ++w) {
        warps_[w] = {&threads_[w * kLanes], 0, 0, {}};
        for (int lane = 0; lane < kLanes; ++lane) warps_[w].known[lane][lane] = 1;
    }
    for (int i = 0; i < count_; ++i) {
        Thread& t = threads_[i];
        const unsigned x = launch.block.x, y = launch.block.y, n = static_cast<unsigned>(i);
        t.index = {n % x, n / x % y, n / (x * y)};
        t.number = i;
        t.lane = i % kLanes;
        t.warp = &warps_[i / kLanes];
        // Stacks that began at equal offsets of their pages would share few sets of the cache.
        t.fiber.prepare(stack(i), kStack - (i * 5 % 64) * 64, &Block::run_thread);
        set_ready(t);
    }
}

void Block::run_thread() {
    block.launch.call(block.launch.arguments);
    block.leave();
    block.pass_on(block.next(), true);
    std::abort();
}

void Block::fault(const std::string& what) {
    error_ = what + "; block " + text(index) + ", thread " + text(thread->index);
    note_frames();
    pass_on(nullptr, true);
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
    ++epoch_;
    for (int i = 0; i < count_; ++i) set_ready(threads_[i]);
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

// Without a thread that could go on, the launch ends here.
void Block::pass_on(Thread* to, bool last) {
    Fiber& from = thread->fiber;
    thread = to;
    Fiber::switch_to(to ? to->fiber : scheduler_, from, last);
}

std::string Block::who_waits() const {
    std::string who = std::to_string(at_barrier_) + " threads wait at __syncthreads()";
    if (at_barrier_) who += " of " + barrier_.text();
    for (int i = 0; i < count_; ++i)
        if (threads_[i].state == State::at_collective) {
            who += ", thread " + std::to_string(i) + " waits at " + threads_[i].request.where();
            break;
        }
    return who + ", " + std::to_string(left_) + " have left";
}

}  // namespace emu
