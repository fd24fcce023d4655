#include "frames.h"

#include <execinfo.h>

#include <cstdint>

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;  // of this library, by the linker

namespace {
constexpr int kMostFrames = 32;
void* frames[kMostFrames];
int count;
}  // namespace

void emu::note_frames() {
    count = backtrace(frames, kMostFrames);
}

// Places in this library, the innermost first; zeros elsewhere and at the end.
extern "C" __attribute__((visibility("default"))) void emu_frames(uint64_t* places, int room) {
    for (int i = 0; i < room; ++i)
        places[i] = i < count ? reinterpret_cast<uintptr_t>(frames[i]) - reinterpret_cast<uintptr_t>(&__ehdr_start) : 0;
}
