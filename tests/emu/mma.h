// The matrix products of a warp, with the fragments of the PTX ISA: d += a b, called by all lanes.
#pragma once

#include <cstdint>

#include "location.h"

namespace emu {

void mma_m16n8k32_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Location at = {});
void mma_m16n8k64_s4(int32_t* d, const uint32_t* a, const uint32_t* b, Location at = {});
void mma_m8n8k16_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Location at = {});

}  // namespace emu
