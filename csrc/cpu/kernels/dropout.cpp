// Dropout whose random bits come from the counter-based generator and whose mask takes one bit an element. A dropped
// NaN or Inf gives NaN, as in torch.

#include <type_traits>

#include "common/bits.h"
#include "common/kernel.h"
#include "common/philox.h"
#include "common/scalar.h"

namespace gqc::GQC_ISA {
namespace {

constexpr int64_t kChunk = kBlocks * kBlockElements;

// out = x * scale where an element is kept, else x * 0, for at most a chunk.
template <typename T>
void keep(const T* x, int64_t count, const uint8_t* kept, float scale, T* out) {
    alignas(64) float scratch[2][kChunk];
    const float* values = floats(x, count, scratch[0]);
    float* results = floats_for(out, scratch[1]);
    for (int64_t i = 0; i < count; ++i) results[i] = values[i] * (kept[i] ? scale : 0.0f);
    store_all(results, count, out);
}

// mask: bit i of the chunk is set where element i is kept, which is where its random number is at least `threshold`.
template <typename T>
void drop_chunk(const Philox& stream, const T* x, int64_t first, int64_t count, uint32_t threshold, float scale, T* out,
                uint8_t* mask) {
    alignas(64) uint16_t random[kChunk];
    alignas(64) uint8_t kept[kChunk];
    random_bits(stream, static_cast<uint64_t>(first / kBlockElements), random);
    for (int64_t i = 0; i < count; ++i) kept[i] = random[i] >= threshold;
    keep(x + first, count, kept, scale, out + first);
    pack_bits<1>(kept, count, mask + first / 8);
}

template <typename T>
void drop(int64_t threads, const Philox& stream, const T* x, int64_t n, uint32_t threshold, float scale, T* out,
          uint8_t* mask) {
    const int64_t whole = n / kChunk;
#pragma omp parallel for num_threads(team(threads, n)) schedule(static)
    for (int64_t c = 0; c < whole; ++c) drop_chunk(stream, x, c * kChunk, kChunk, threshold, scale, out, mask);
    drop_chunk(stream, x, whole * kChunk, n - whole * kChunk, threshold, scale, out, mask);
}

template <typename T>
void drop_backward(int64_t threads, const T* grad, const uint8_t* mask, int64_t n, float scale, T* out) {
#pragma omp parallel for num_threads(team(threads, n)) schedule(static)
    for (int64_t first = 0; first < n; first += kChunk) {
        const int64_t count = n - first < kChunk ? n - first : kChunk;
        alignas(64) uint8_t kept[kChunk];
        unpack_bits<1>(mask + first / 8, count, kept);
        keep(grad + first, count, kept, scale, out + first);
    }
}

}  // namespace

// x, out: n elements; seed: two int64; mask: (n + 7) / 8 bytes; threshold: 0 keeps every element, 65536 none.
GQC_KERNEL(dropout)(int64_t threads, const void* x, int64_t dtype, int64_t n, const int64_t* seed, int64_t node,
                    int64_t threshold, float scale, void* out, uint8_t* mask) {
    const Philox stream(seed, node);
    typed(x, dtype, [&](auto* values) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        drop(threads, stream, values, n, static_cast<uint32_t>(threshold), scale, static_cast<T*>(out), mask);
    });
    return nullptr;
}

GQC_KERNEL(dropout_backward)(int64_t threads, const void* grad, int64_t dtype, int64_t n, const uint8_t* mask,
                             float scale, void* out) {
    typed(grad, dtype, [&](auto* values) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        drop_backward(threads, values, mask, n, scale, static_cast<T*>(out));
    });
    return nullptr;
}

}  // namespace gqc::GQC_ISA
