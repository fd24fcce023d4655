// What tests/emu/emulator.py calls.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "block.h"
#include "global.h"
#include "registry.h"
#include "shared.h"

namespace emu {

struct Memory {
    uint64_t begin;
    uint64_t end;
    uint64_t element;  // bytes of what is stored there
};

namespace {

constexpr size_t kMostArguments = 64;

const Export* exports;  // the last one

const Export* find(const char* name) {
    const Export* found = exports;
    while (found && std::strcmp(found->name, name)) found = found->next;
    return found;
}

std::string refusal(const Export* kernel, const char* arguments, int threads) {
    if (!kernel) return "no such kernel in csrc/cuda: GQC_EXPORT names none";
    if (std::strlen(arguments) > kMostArguments) return "takes more arguments than the emulator";
    if (kernel->arguments != arguments)
        return "takes the arguments " + kernel->arguments + " and is launched with " + arguments;
    if (threads > kernel->threads)
        return "is compiled for " + std::to_string(kernel->threads) + " threads and is launched with " +
               std::to_string(threads);
    return "";
}

// One range of memory for each group of arguments that overlap.
std::vector<Tensor> tensors(const Memory* memory, size_t arguments) {
    std::vector<std::pair<int, Memory>> ranges;
    for (size_t i = 0; i < arguments; ++i) {
        std::pair<int, Memory> range(static_cast<int>(i), memory[i]);
        Memory& joined = range.second;
        const auto overlaps = [&](const std::pair<int, Memory>& other) {
            return other.second.begin < joined.end && joined.begin < other.second.end;
        };
        for (auto other = ranges.begin();
             (other = std::find_if(ranges.begin(), ranges.end(), overlaps)) != ranges.end();) {
            joined = {std::min(joined.begin, other->second.begin), std::max(joined.end, other->second.end),
                      std::min(joined.element, other->second.element)};
            ranges.erase(other);
        }
        if (joined.begin < joined.end) ranges.push_back(range);
    }
    std::vector<Tensor> tensors;
    for (const auto& [argument, range] : ranges)
        tensors.emplace_back(argument, range.begin, range.end - range.begin, range.element);
    return tensors;
}

std::string run_blocks(const Launch& launch) {
    const dim3 grid = launch.grid;
    block.prepare(launch);
    std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
    std::iota(order.begin(), order.end(), 0);
    if (launch.order == Order::descending) std::reverse(order.begin(), order.end());
    if (launch.order == Order::random)
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[block.random() % i]);
    for (const uint64_t i : order) {
        const unsigned x = static_cast<unsigned>(i % grid.x), y = static_cast<unsigned>(i / grid.x % grid.y);
        const std::string error = block.run({x, y, static_cast<unsigned>(i / grid.x / grid.y)});
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
// values: 8 bytes an argument. memory: what a pointer points to, empty for other arguments.
extern "C" __attribute__((visibility("default"))) const char* emu_launch(  //
    const char* name, const char* arguments, const unsigned* grid, unsigned threads, const uint64_t* values,
    const emu::Memory* memory, int order, uint64_t seed) {
    static std::mutex one_at_a_time;
    static std::string error;
    static uint64_t copies[emu::kMostArguments];  // here, not in memory that could be taken for a tensor's
    static void* addresses[emu::kMostArguments];
    const std::lock_guard lock(one_at_a_time);
    const emu::Export* kernel = emu::find(name);
    const size_t count = std::strlen(arguments);
    error = emu::refusal(kernel, arguments, static_cast<int>(threads));
    if (!error.empty()) return error.c_str();
    for (size_t i = 0; i < count; ++i) addresses[i] = &(copies[i] = values[i]);
    emu::free_shared_memory();
    emu::set_tensors(emu::tensors(memory, count));
    error = emu::run_blocks(
        {kernel->call, addresses, {grid[0], grid[1], grid[2]}, {threads, 1, 1}, static_cast<emu::Order>(order), seed});
    emu::set_tensors({});
    return error.empty() ? nullptr : error.c_str();
}

// Name and arguments of each kernel by its number from 0; null beyond the last.
extern "C" __attribute__((visibility("default"))) const char* emu_kernel(int number, const char** arguments) {
    const emu::Export* kernel = emu::exports;
    while (kernel && number-- > 0) kernel = kernel->next;
    if (!kernel) return nullptr;
    *arguments = kernel->arguments.c_str();
    return kernel->name;
}
