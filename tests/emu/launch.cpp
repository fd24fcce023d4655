// What tests/emu/emulator.py calls.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "block.h"
#include "registry.h"

namespace emu {
namespace {

const Export* exports;  // the last one

const Export* find(const char* name) {
    const Export* found = exports;
    while (found && std::strcmp(found->name, name)) found = found->next;
    return found;
}

std::string refusal(const Export* kernel, const char* arguments, int threads) {
    if (!kernel) return "no such kernel in csrc/cuda: GQC_EXPORT names none";
    if (kernel->arguments != arguments)
        return "takes the arguments " + kernel->arguments + " and is launched with " + arguments;
    if (threads > kernel->threads)
        return "is compiled for " + std::to_string(kernel->threads) + " threads and is launched with " +
               std::to_string(threads);
    return "";
}

std::string run_blocks(const Launch& launch) {
    const dim3 grid = launch.grid;
    Block running(launch);
    std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
    std::iota(order.begin(), order.end(), 0);
    if (launch.order == Order::descending) std::reverse(order.begin(), order.end());
    if (launch.order == Order::random)
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[running.random() % i]);
    for (const uint64_t i : order) {
        const unsigned x = static_cast<unsigned>(i % grid.x), y = static_cast<unsigned>(i / grid.x % grid.y);
        const std::string error = running.run({x, y, static_cast<unsigned>(i / grid.x / grid.y)});
        if (!error.empty()) return error;
    }
    return "";
}

}  // namespace

Export::Export(const char* name, std::string arguments, int threads, void (*call)(void**))
    : name(name), arguments(std::move(arguments)), threads(threads), call(call), next(exports) {
    exports = this;
}

}  // namespace emu

// Returns what is wrong, null if all is well; the text lives until the next launch. One launch runs at a time.
extern "C" __attribute__((visibility("default"))) const char* emu_launch(  //
    const char* name, const char* arguments, const unsigned* grid, unsigned threads, void** values, int order,
    uint64_t seed) {
    static std::mutex one_at_a_time;
    static std::string error;
    const std::lock_guard lock(one_at_a_time);
    const emu::Export* kernel = emu::find(name);
    error = emu::refusal(kernel, arguments, static_cast<int>(threads));
    if (error.empty())
        error = emu::run_blocks({name,
                                 kernel->call,
                                 values,
                                 {grid[0], grid[1], grid[2]},
                                 {threads, 1, 1},
                                 static_cast<emu::Order>(order),
                                 seed});
    return error.empty() ? nullptr : error.c_str();
}
