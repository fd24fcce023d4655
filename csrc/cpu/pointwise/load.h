// Brings the elements of a tile that an input has, or repeats, into a slot.
#pragma once

#include <cstring>

#include "cpu/pointwise/instructions.h"
#include "cpu/stream.h"

namespace gqc::GQC_ISA {

struct boolean {
    uint8_t bits;
};

// A mask's element.
inline float load(boolean x) {
    return float_of(x.bits ? ~0u : 0u);
}

template <typename T>
inline void load_run(const T* from, int64_t count, float* out) {
    load_all(from, count, out);
}
inline void load_run(const float* from, int64_t count, float* out) {
    std::memcpy(out, from, static_cast<size_t>(count) * sizeof(float));
}

// Bits first .. first + count of a packed mask; first is a multiple of 8.
inline void load_bits(const uint8_t* mask, int64_t first, int64_t count, float* out) {
    const uint8_t* bytes = mask + first / 8;
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        uint16_t sixteen;
        std::memcpy(&sixteen, bytes + i / 8, sizeof sixteen);
        _mm512_storeu_si512(out + i, _mm512_movm_epi32(sixteen));
    }
#elif defined(__AVX2__)
    const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (; i + 8 <= count; i += 8) {
        const __m256i set = _mm256_and_si256(_mm256_set1_epi32(bytes[i / 8]), places);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_cmpeq_epi32(set, places));
    }
#endif
    for (; i < count; ++i) out[i] = float_of(bytes[i / 8] >> i % 8 & 1 ? ~0u : 0u);
}

inline void fill(float* out, int64_t count, float value) {
    const Floats values = all(value);
    int64_t i = 0;
    for (; i + kWide <= count; i += kWide) put(out + i, values);
    for (; i < count; ++i) out[i] = value;
}

// Elements first .. first + count of the iteration from an input that some axes do not have.
template <typename T>
inline void load_broadcast(const T* from, const int64_t* axes, const int64_t* strides, int64_t first, int64_t count,
                           float* out) {
    int64_t i2 = first % axes[2], outer = first / axes[2];
    int64_t i1 = outer % axes[1], i0 = outer / axes[1];
    for (int64_t at = 0; at < count;) {
        const int64_t left = axes[2] - i2, run = left < count - at ? left : count - at;
        const T* start = from + i0 * strides[0] + i1 * strides[1] + i2 * strides[2];
        if (strides[2]) {
            load_run(start, run, out + at);
        } else {
            fill(out + at, run, load(*start));
        }
        at += run;
        i2 = 0;
        if (++i1 == axes[1]) i1 = 0, ++i0;
    }
}

// What a thread knows of the inputs of one call.
struct Loader {
    const Plan& plan;
    const void* const* inputs;
    float* buffers;                  // tile elements a slot
    int64_t capacity;                // of a slot
    int64_t phase = -1, filled = 0;  // where in a row the last tile started, and its length

    // Points the slots of the inputs i for which is_needed(i) to their elements of the tile; `computed` are those of
    // input 0 if it is computed, `stride` behind them those of the next.
    template <typename IsNeeded>
    void load(const Tile& tile, float* computed, int64_t stride, const IsNeeded& is_needed) {
        const bool again = tile.first % plan.row() == phase && tile.count <= filled;
        phase = tile.first % plan.row();
        filled = tile.count;
        const void* const* next = inputs;
        for (int64_t i = 0; i < plan.inputs; ++i) {
            const Input& input = plan.input[i];
            float* const buffer = buffers + i * capacity;
            if (input.type == Type::computed) {
                tile.slots[i] = computed + i * stride;
                continue;
            }
            const void* const from_tensor = *next++;
            tile.slots[i] = buffer;
            if (!is_needed(i)) continue;
            if (input.type == Type::bits) {
                load_bits(static_cast<const uint8_t*>(from_tensor), tile.first, tile.count, buffer);
            } else if (is_whole(input)) {
                if (input.type == Type::float32 && tile.first + tile.padded() <= plan.size())  // no input is written
                    tile.slots[i] = const_cast<float*>(static_cast<const float*>(from_tensor)) + tile.first;
                else
                    with_type(from_tensor, input.type,
                              [&](auto* from) { load_run(from + tile.first, tile.count, buffer); });
            } else if (!again || input.strides[0]) {
                with_type(from_tensor, input.type, [&](auto* from) {
                    load_broadcast(from, plan.axes, input.strides, tile.first, tile.count, buffer);
                });
            }
        }
    }

    // Asks for a part of what the tile after this one needs of whole inputs. At once it would be more requests than a
    // core can have under way, and the computation would wait.
    template <typename IsNeeded>
    void ask_for_next(const Tile& tile, int64_t part, int64_t parts, const IsNeeded& is_needed) const {
        const void* const* next = inputs;
        for (int64_t i = 0; i < plan.inputs; ++i) {
            const Input& input = plan.input[i];
            if (input.type == Type::computed) continue;
            const void* const from_tensor = *next++;
            if (!is_needed(i) || !is_whole(input)) continue;
            with_type(from_tensor, input.type, [&](auto* from) {
                const int64_t each = (tile.count + parts - 1) / parts;
                prefetch(from + tile.first + tile.count + part * each, each * static_cast<int64_t>(sizeof *from));
            });
        }
    }

    // Whether element i of the input is element i of the iteration.
    bool is_whole(const Input& input) const {
        int64_t stride = 1;
        for (int axis = 2; axis >= 0; --axis) {
            if (plan.axes[axis] != 1 && input.strides[axis] != stride) return false;
            stride *= plan.axes[axis];
        }
        return true;
    }

    template <typename F>
    static void with_type(const void* from, Type type, const F& f) {
        if (type == Type::float32) f(static_cast<const float*>(from));
        if (type == Type::bfloat16) f(static_cast<const bfloat16*>(from));
        if (type == Type::float16) f(static_cast<const float16*>(from));
        if (type == Type::boolean) f(static_cast<const boolean*>(from));
    }
};

}  // namespace gqc::GQC_ISA
