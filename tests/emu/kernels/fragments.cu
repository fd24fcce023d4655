// One product of a warp. Each lane's words of a, b and d lie one after another.

#include "cuda/device.cuh"

template <int words_of_a, int words_of_b, int words_of_d, typename Mma>
__device__ __forceinline__ void multiply(const uint32_t* a, const uint32_t* b, int32_t* d, Mma mma) {
    uint32_t own_a[words_of_a], own_b[words_of_b];
    int32_t own_d[words_of_d];
    for (int i = 0; i < words_of_a; ++i) own_a[i] = a[lane_id() * words_of_a + i];
    for (int i = 0; i < words_of_b; ++i) own_b[i] = b[lane_id() * words_of_b + i];
    for (int i = 0; i < words_of_d; ++i) own_d[i] = d[lane_id() * words_of_d + i];
    mma(own_d, own_a, own_b);
    for (int i = 0; i < words_of_d; ++i) d[lane_id() * words_of_d + i] = own_d[i];
}

GQC_GLOBAL(32) m16n8k32_s8(const uint32_t* a, const uint32_t* b, int32_t* d) {
    multiply<4, 2, 4>(a, b, d, [](auto* d, auto* a, auto* b) { emu::mma_m16n8k32_s8(d, a, b); });
}
GQC_EXPORT(m16n8k32_s8)
GQC_GLOBAL(32) m16n8k64_s4(const uint32_t* a, const uint32_t* b, int32_t* d) {
    multiply<4, 2, 4>(a, b, d, [](auto* d, auto* a, auto* b) { emu::mma_m16n8k64_s4(d, a, b); });
}
GQC_EXPORT(m16n8k64_s4)
GQC_GLOBAL(32) m8n8k16_s8(const uint32_t* a, const uint32_t* b, int32_t* d) {
    multiply<1, 1, 2>(a, b, d, [](auto* d, auto* a, auto* b) { emu::mma_m8n8k16_s8(d, a, b); });
}
GQC_EXPORT(m8n8k16_s8)
