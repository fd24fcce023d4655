// The intrinsics of the instruction set that is compiled for. Compilers take most of a second to read those of all
// sets.
#pragma once

#if defined(__AVX2__)
#    include <immintrin.h>
#elif defined(__SSE2__)
#    include <emmintrin.h>
#endif
