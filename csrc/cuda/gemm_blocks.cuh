// How many blocks of a product share a multiprocessor, whose registers then suffice for each (those of sm_75 do not).
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 1;
#else
constexpr int kBlocks = 2;
#endif
