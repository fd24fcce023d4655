#include "shared.h"

namespace emu {

SharedMemory& Block::shared_memory(const void* declaration, size_t bytes) {
    for (SharedMemory& memory : shared_)
        if (memory.declaration == declaration) return memory;
    shared_bytes_ += (bytes + 15) / 16 * 16;
    if (shared_bytes_ > kMostShared)
        fault("a block has " + std::to_string(kMostShared) + " bytes of shared memory and this one needs " +
              std::to_string(shared_bytes_));
    return shared_.emplace_back(SharedMemory{declaration, std::vector<unsigned char>(bytes, 0xFF)});
}

}  // namespace emu
