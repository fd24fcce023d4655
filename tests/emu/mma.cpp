#include "mma.h"

#include <cstring>

#include "warp.h"

namespace emu {
namespace {

// A word holds 32 / Bits neighbours along k.
template <int Bits>
int element(uint32_t word, int i) {
    return static_cast<int32_t>(word << (32 - Bits - i * Bits)) >> (32 - Bits);
}

// Lane 4 g + t holds words t, t + 4, .. of the rows g, g + 8, .. of a and of row g of b (whose rows run along k), and
// columns 2 t and 2 t + 1 of the rows g, g + 8, .. of d.
template <int Rows, int K, int Bits>
void take_product(Warp& warp, uint32_t) {
    constexpr int kPerWord = 32 / Bits, kWords = K / kPerWord, kColumns = 8, kHalves = Rows / 8;
    int a[Rows][K], b[kColumns][K];
    for (int lane = 0; lane < kLanes; ++lane) {
        const int g = lane / 4, t = lane % 4;
        uint32_t words[6];
        std::memcpy(words, warp.lanes[lane].request.value, sizeof words);
        for (int w = 0; w < kWords / 4; ++w)
            for (int i = 0; i < kPerWord; ++i) {
                const int k = (w * 4 + t) * kPerWord + i;
                for (int half = 0; half < kHalves; ++half)
                    a[g + 8 * half][k] = element<Bits>(words[w * kHalves + half], i);
                b[g][k] = element<Bits>(words[4 + w], i);
            }
    }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 2 * kHalves; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            int sum = 0;
            for (int k = 0; k < K; ++k) sum += a[row][k] * b[column][k];
            warp.lanes[lane].request.result[i] = sum;
        }
}

template <int Rows, int K, int Bits>
void mma(const char* name, Location at, int32_t* d, const uint32_t* a, const uint32_t* b) {
    constexpr int kWordsOfB = K * Bits / 128, kWordsOfA = kWordsOfB * Rows / 8;
    uint32_t words[6] = {};
    std::memcpy(words, a, kWordsOfA * sizeof *a);
    std::memcpy(words + 4, b, kWordsOfB * sizeof *b);
    uint64_t pairs[3];
    std::memcpy(pairs, words, sizeof pairs);
    meet(name, at, 0xffffffffu, take_product<Rows, K, Bits>, 0, pairs, 3);
    for (int i = 0; i < Rows / 4; ++i)
        d[i] = static_cast<int32_t>(static_cast<uint32_t>(d[i]) + static_cast<uint32_t>(thread->request.result[i]));
}

}  // namespace

void mma_m16n8k32_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Location at) {
    mma<16, 32, 8>("mma.m16n8k32.s8", at, d, a, b);
}
void mma_m16n8k64_s4(int32_t* d, const uint32_t* a, const uint32_t* b, Location at) {
    mma<16, 64, 4>("mma.m16n8k64.s4", at, d, a, b);
}
void mma_m8n8k16_s8(int32_t* d, const uint32_t* a, const uint32_t* b, Location at) {
    mma<8, 16, 8>("mma.m8n8k16.s8", at, d, a, b);
}

}  // namespace emu
