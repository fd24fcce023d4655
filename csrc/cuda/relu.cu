// The gradient of a relu whose product kept a bit for each value, where that is positive.

#include "cuda/vector.cuh"

// Word: the bits of an element. A thread takes the 8 elements of a byte.
template <typename Word>
__device__ __forceinline__ void relu_backward(const Word* grad, int64_t rows, int64_t width, const uint8_t* positive,
                                              Word* out) {
    constexpr int kOfVector = 16 / sizeof(Word);
    const int64_t bytes = (width + kEight - 1) / kEight;
    const bool vectors = width % kEight == 0 && is_aligned(grad, 16) && is_aligned(out, 16);
    const int64_t step = grid_threads() % bytes, row_step = grid_threads() / bytes;
    int64_t row = grid_thread() / bytes, byte = grid_thread() % bytes;
#pragma unroll 1
    while (row < rows) {
        const uint32_t bits = positive[row * bytes + byte];
        const int64_t first = row * width + byte * kEight;
        const auto kept = [&](int i) { return (bits >> i & 1u) != 0; };
        if (vectors) {
#pragma unroll
            for (int i = 0; i < kEight; i += kOfVector) {
                uint4 words = global_load<uint4>(grad + first + i);
                if constexpr (sizeof(Word) == 4) {
                    words.x = kept(i) ? words.x : 0, words.y = kept(i + 1) ? words.y : 0;
                    words.z = kept(i + 2) ? words.z : 0, words.w = kept(i + 3) ? words.w : 0;
                } else {
                    const auto pair = [&](int j) {
                        return (kept(j) ? 0xffffu : 0u) | (kept(j + 1) ? 0xffff0000u : 0u);
                    };
                    words.x &= pair(0), words.y &= pair(2), words.z &= pair(4), words.w &= pair(6);
                }
                global_store<uint4>(out + first + i, words);
            }
        } else {
            const int count = count_of_eight(byte * kEight, width);
#pragma unroll
            for (int i = 0; i < kEight; ++i)
                if (i < count) out[first + i] = kept(i) ? grad[first + i] : Word(0);
        }
        byte += step;
        row += row_step;
        if (byte >= bytes) byte -= bytes, row += 1;
    }
}

// grad, out: [rows, width] of 32 bits; positive: [rows, (width + 7) / 8]; width > 0.
GQC_GLOBAL(256)
relu_backward_32(const uint32_t* grad, int64_t rows, int64_t width, const uint8_t* positive, uint32_t* out) {
    relu_backward(grad, rows, width, positive, out);
}
GQC_EXPORT(relu_backward_32)

// As relu_backward_32 for types of 16 bits.
GQC_GLOBAL(256)
relu_backward_16(const uint16_t* grad, int64_t rows, int64_t width, const uint8_t* positive, uint16_t* out) {
    relu_backward(grad, rows, width, positive, out);
}
GQC_EXPORT(relu_backward_16)
