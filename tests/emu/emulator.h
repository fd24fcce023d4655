// Lets g++ compile csrc/cuda: what nvcc brings along, on one fiber a CUDA thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#include "atomics.h"
#include "block.h"
#include "global.h"
#include "intrinsics.h"
#include "mma.h"
#include "registry.h"
#include "shared.h"
#include "vector_types.h"
#include "warp.h"
