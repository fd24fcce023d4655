// What this processor and its operating system run.
#pragma once

namespace processor {

bool runs_avx2();  // with FMA and F16C
bool runs_avx_vnni();
bool runs_avx512();          // with VNNI
bool may_use_tiles();        // of AMX, with products of int8
bool multiplies_bfloat16();  // in tiles

}  // namespace processor
