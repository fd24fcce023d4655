// A block of CUDA threads: who is ready to run, who waits at __syncthreads() and who waits for lanes of his warp.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "fiber.h"
#include "location.h"
#include "vector_types.h"

namespace emu {

constexpr int kLanes = 32;
constexpr int kMostThreads = 1024;
constexpr size_t kMostShared = 48 << 10;  // of a kernel that asks for no more

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
};

struct Launch {
    const char* kernel;
    void (*call)(void** arguments);
    void** arguments;
    dim3 grid;
    dim3 block;
    Order order;
    uint64_t seed;
};

// What the threads of a block see under one GQC_SHARED.
struct SharedMemory {
    const void* declaration;
    std::vector<unsigned char> bytes;
};

class Block {
  public:
    explicit Block(const Launch& launch);
    ~Block();

    // Runs the kernel on block `index` of the grid. Returns what is wrong with the kernel, nothing if it is all right.
    std::string run(uint3 index);

    // __syncthreads() of the running thread.
    void barrier(Location at);

    // Makes the running thread's request and returns when the lanes that its mask names have made theirs.
    void collective();

    // The block's memory of a declaration. Each block finds it filled with 0xFF.
    SharedMemory& shared_memory(const void* declaration, size_t bytes);

    uint32_t random();

    const Launch& launch;
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

    int count_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    uint64_t ready_[kMostThreads / 64] = {};
    int at_barrier_ = 0;
    int left_ = 0;
    Location barrier_;
    std::deque<SharedMemory> shared_;
    size_t shared_bytes_ = 0;
    Fiber scheduler_;
    std::string error_;
    uint64_t random_;
};

extern Block* block;    // the running one
extern Thread* thread;  // the running one

// Ends the running thread and with it the launch.
[[noreturn]] void fault(const std::string& what);

}  // namespace emu

#define threadIdx (::emu::thread->index)
#define blockIdx (::emu::block->index)
#define blockDim (::emu::block->launch.block)
#define gridDim (::emu::block->launch.grid)

inline void __syncthreads(emu::Location at = {}) {
    emu::block->barrier(at);
}
