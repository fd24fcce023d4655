// Brings the elements of a tile that an input has, or repeats, into a slot.
#pragma once

#include <cstring>

#include "cpu/pointwise/strip.h"
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

// Up to kWide - 1 more too.
inline void fill(float* out, int64_t count, float value) {
    const Floats values = all(value);
    for (int64_t i = 0; i < count; i += kWide) put(out + i, values);
}

// Where an element of the iteration is.
struct Place {
    int64_t i0, i1, i2;

    Place(const int64_t* axes, int64_t element)
        : i0(element / axes[2] / axes[1]), i1(element / axes[2] % axes[1]), i2(element % axes[2]) {}
};

// `count` elements of the iteration, from `place` on, of an input that some axes do not have; up to kWide - 1 more are
// written. Where the last axis is one of these, a number of the output stands for kEach elements.
template <int kEach, typename T>
inline void load_broadcast(const T* from, const int64_t* axes, const int64_t* strides, Place place, int64_t count,
                           float* out) {
    for (int64_t at = 0; at < count;) {
        const int64_t left = axes[2] - place.i2, run = left < count - at ? left : count - at;
        const T* start = from + place.i0 * strides[0] + place.i1 * strides[1] + place.i2 * strides[2];
        if (strides[2])
            load_run(start, run, out + at);
        else
            fill(out + at / kEach, run / kEach, load(*start));
        at += run;
        place.i2 = 0;
        if (++place.i1 == axes[1]) place.i1 = 0, ++place.i0;
    }
}

// Likewise of rows, of each of which one number stands for every kWide elements; `step` numbers lie from one to the
// next.
template <typename T>
inline void load_repeated(const T* from, int64_t step, int64_t rows, int64_t width, float* out) {
    const int64_t each = width / kWide;
    for (int64_t r = 0; r < rows; ++r) fill(out + r * each, each, load(from[r * step]));
}

// What a thread knows of the inputs of one call that it needs.
class Loader {
  public:
    // capacity: of a slot, at least kWide more than a tile has.
    template <typename IsNeeded>
    Loader(const Plan& plan, const Steps& steps, const void* const* inputs, int64_t capacity, const IsNeeded& is_needed)
        : plan_(plan), sources_(plan.inputs + 1) {
        if (!ok() || !steps.ok()) return;
        for (int64_t i = 0; i < plan.inputs; ++i) {
            const Input& input = plan.input[i];
            const void* const from = input.type == Type::computed ? nullptr : *inputs++;
            if (is_needed(i) || !from)
                sources_[count_++] = {input, i, i * capacity, from, kind_of(input, steps.repeats(i)), step_of(input)};
        }
    }

    bool ok() const { return sources_.ok(); }

    // Points the slots of the inputs to their elements of the tile; buffers: `capacity` floats a slot; computed: the
    // elements of input 0 if it is computed, `stride` before those of the next.
    void load(const Tile& tile, float* computed, int64_t stride, float* buffers) {
        const Place place(plan_.axes, tile.first);
        for (int64_t i = 0; i < count_; ++i) {
            const Source& source = sources_[i];
            float* const buffer = buffers + source.buffer;
            tile.slots[source.slot] = buffer;
            switch (source.kind) {
                case Kind::computed:
                    tile.slots[source.slot] = computed + source.slot * stride;
                    break;
                case Kind::bits:
                    load_bits(static_cast<const uint8_t*>(source.from), tile.first, tile.count, buffer);
                    break;
                case Kind::floats:  // no input is written
                    if (tile.first + tile.padded() <= plan_.size()) {
                        tile.slots[source.slot] =
                            const_cast<float*>(static_cast<const float*>(source.from)) + tile.first;
                        break;
                    }
                    [[fallthrough]];
                case Kind::whole:
                    with_type(source, [&](auto* from) { load_run(from + tile.first, tile.count, buffer); });
                    break;
                case Kind::repeated:
                case Kind::broadcast:
                    if (is_there(source.input, place, tile.count)) break;
                    with_type(source, [&](auto* from) {
                        const int64_t width = plan_.axes[2];
                        if (source.kind == Kind::repeated && source.step != kNone && place.i2 == 0 &&
                            tile.count % width == 0)
                            load_repeated(from + tile.first / width * source.step, source.step, tile.count / width,
                                          width, buffer);
                        else if (source.kind == Kind::repeated)
                            load_broadcast<kWide>(from, plan_.axes, source.input.strides, place, tile.count, buffer);
                        else
                            load_broadcast<1>(from, plan_.axes, source.input.strides, place, tile.count, buffer);
                    });
                    break;
            }
        }
        last_ = place;
        filled_ = tile.count;
    }

    // Asks for a part of what the tile after this one needs of whole inputs. At once it would be more requests than a
    // core can have under way, and the computation would wait.
    void ask_for_next(const Tile& tile, int64_t part, int64_t parts) const {
        for (int64_t i = 0; i < count_; ++i) {
            const Source& source = sources_[i];
            if (source.kind != Kind::floats && source.kind != Kind::whole) continue;
            const int64_t each = (tile.count + parts - 1) / parts,
                          element = kBytes[static_cast<int64_t>(source.input.type)];
            prefetch(static_cast<const char*>(source.from) + (tile.first + tile.count + part * each) * element,
                     each * element);
        }
    }

  private:
    // repeated: one number stands for each vector.
    enum class Kind { computed, bits, floats, whole, repeated, broadcast };
    static constexpr int64_t kBytes[] = {4, 2, 2, 1};  // by Type

    struct Source {
        Input input;
        int64_t slot, buffer;
        const void* from;
        Kind kind;
        int64_t step;  // of a repeated input, from a row's number to the next one's, if it is the same everywhere
    };

    Kind kind_of(const Input& input, bool repeats) const {
        if (input.type == Type::computed) return Kind::computed;
        if (input.type == Type::bits) return Kind::bits;
        if (is_whole(input)) return input.type == Type::float32 ? Kind::floats : Kind::whole;
        return repeats ? Kind::repeated : Kind::broadcast;
    }

    int64_t step_of(const Input& input) const {
        const int64_t outer = input.strides[0], inner = input.strides[1];
        if (plan_.axes[0] == 1 || outer == inner * plan_.axes[1]) return inner;
        return plan_.axes[1] == 1 ? outer : kNone;
    }

    // Whether element i of the input is element i of the iteration.
    bool is_whole(const Input& input) const {
        int64_t stride = 1;
        for (int axis = 2; axis >= 0; --axis) {
            if (plan_.axes[axis] != 1 && input.strides[axis] != stride) return false;
            stride *= plan_.axes[axis];
        }
        return true;
    }

    // Whether the elements of a broadcast input are those of the last tile.
    bool is_there(const Input& input, const Place& place, int64_t count) const {
        const bool same = !input.strides[0] && count <= filled_ && place.i2 == last_.i2;
        return same && (place.i1 == last_.i1 || !input.strides[1]);
    }

    template <typename F>
    static void with_type(const Source& source, const F& f) {
        switch (source.input.type) {
            case Type::bfloat16:
                return f(static_cast<const bfloat16*>(source.from));
            case Type::float16:
                return f(static_cast<const float16*>(source.from));
            case Type::boolean:
                return f(static_cast<const boolean*>(source.from));
            default:
                return f(static_cast<const float*>(source.from));
        }
    }

    const Plan& plan_;
    const Buffer<Source> sources_;
    int64_t count_ = 0;
    Place last_{plan_.axes, 0};  // where the last tile started
    int64_t filled_ = 0;         // its length
};

}  // namespace gqc::GQC_ISA
