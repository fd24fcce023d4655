// A block of CUDA threads: who is ready to run, who waits at __syncthreads() and who waits for lanes of his warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"
#include "location.h"
#include "vector_types.h"

namespace emu {

constexpr int kLanes = 32;
constexpr int kMostThreads = 1024;

// Which of the threads that are ready runs next, and in which order blocks run.
enum class Order { ascending, descending, random };

struct Warp;

// What a lane brings to a warp collective and what it takes from there.
struct Request {
    const char* name = nullptr;  // the intrinsic's
    Location at;
    uint32_t mask = 0;
    void (*meet)(Warp&, uint32_t mask) = nullptr;  // called once, when all lanes of the mask have come
    int lane = 0;                                  // whose value this lane asks for
    uint64_t value[3] = {};
    int32_t result[4] = {};

    std::string where() const;
};

enum class State { ready, at_barrier, at_collective, left };

struct Thread {
    Fiber fiber;
    uint3 index;
    int number;
    int lane;
    Warp* warp;
    State state;
    Request request;
};

struct Warp {
    Thread* lanes;
    uint32_t waiting;
    uint32_t left;
    uint32_t known[kLanes]
                  [kLanes];  // [i][j]: the clock of lane j up to which lane i is ordered after it; [i][i]: i's own

    // Orders what the lanes of the mask have done before what they do next.
    void synchronize(uint32_t mask);
};

struct Launch {
    void (*call)(void** arguments);
    void** arguments;
    dim3 grid;
    dim3 block;
    Order order;
    uint64_t seed;
};

class Block {
  public:
    // Makes the block one of this launch, of which none has run.
    void prepare(const Launch& launch);

    // Runs the kernel on block `index` of the grid. Returns what is wrong with the kernel, nothing if it is all right.
    std::string run(uint3 index);

    // __syncthreads() of the running thread.
    void barrier(Location at);

    // Makes the running thread's request and returns when the lanes that its mask names have made theirs.
    void collective();

    // Ends the running thread and with it the launch.
    [[noreturn]] void fault(const std::string& what);

    uint32_t random();

    // Rises with each block of a launch and with each of its barriers.
    uint32_t epoch() const { return epoch_; }
    uint32_t first_epoch() const { return starts_.back().first; }
    uint3 index_at(uint32_t epoch) const;

    Launch launch{};
    uint3 index{};

  private:
    static void run_thread();

    void start_threads();
    void wait(State state);
    void set_ready(Thread& thread);
    void leave();
    Thread* next();
    void pass_on(Thread* to, bool last);
    std::string who_waits() const;

    int count_ = 0;
    Thread threads_[kMostThreads];
    Warp warps_[kMostThreads / kLanes];
    uint64_t ready_[kMostThreads / 64] = {};
    int at_barrier_ = 0;
    int left_ = 0;
    Location barrier_;
    uint32_t epoch_ = 0;
    std::vector<std::pair<uint32_t, uint3>> starts_;  // first epochs of the blocks that have run
    Fiber scheduler_;
    std::string error_;
    uint64_t random_ = 1;
};

extern Block block;     // the running one
extern Thread* thread;  // the running one

[[noreturn]] inline void fault(const std::string& what) {
    block.fault(what);
}

// The memory of all threads' stacks.
std::pair<const char*, size_t> stacks();

std::string text(uint3 i);

}  // namespace emu

#define threadIdx (::emu::thread->index)
#define blockIdx (::emu::block.index)
#define blockDim (::emu::block.launch.block)
#define gridDim (::emu::block.launch.grid)

inline void __syncthreads(emu::Location at = {}) {
    emu::block.barrier(at);
}
