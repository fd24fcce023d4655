// How the rows of a left operand come into shared memory, a chunk or two at a time, while those before are multiplied.
//
// A left operand has fetch(array, stage), which begins to read what comes next, and put(array, stage), which leaves it
// in a stage; kAhead of them are fetched before the first is multiplied. store_copy(array, stage, tile, chunk) is
// called when all threads may read a stage.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/gemm_tile.cuh"
#include "cuda/rounding.cuh"

constexpr int kRowsThreads = 256;

// Integers, as they lie or unpacked. kRows: of a tile; kAsync: their pieces are whole, aligned and not unpacked, and go
// there by copies that run ahead, where the GPU has those.
template <typename Format, int kRows, bool kAsync>
class IntegerLeft {
  public:
    static constexpr bool kCopies = kAsync && kAsyncCopies;
    static constexpr int kStages = kCopies ? 4 : 2, kChunks = 1;  // kChunks: of a stage
    static constexpr int kStage = kRows * kChunk;                 // bytes

    __device__ __forceinline__ IntegerLeft(const void* a, int64_t packed, const float* scale, int64_t m, int64_t k,
                                           int tiles, int slabs)
        : whole_(a, m, k, kAsync ? Format::kOfByte == 2 : packed, true),
          scale_(scale),
          tiles_(tiles),
          slabs_(slabs),
          tile_(static_cast<int>(blockIdx.x)) {
        start();
    }

    __device__ __forceinline__ float scale() const { return *scale_; }

    template <typename Array>
    __device__ __forceinline__ void fetch(Array& array, int stage) {
        if constexpr (kCopies) {
            if (tile_ < tiles_) {
                const bool inside = width_left() > 0;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const bool copies = inside && i * kRowsOfPieces < rows_left_;
                    copy_async(array, place(stage, i),
                               copies ? from_ + i * kRowsOfPieces * whole_.pitch() : whole_.values, copies);
                }
                go_on();
            }
            end_copies();
        } else {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                const int rows = rows_left_ - i * kRowsOfPieces;
                pieces_[i] = make_uint4(0, 0, 0, 0);
                if (rows > 0 && width_left() > 0)
                    pieces_[i] =
                        load_piece<Format>(whole_.values, from_ + i * kRowsOfPieces * whole_.pitch(), width_left(),
                                           is_near_end(rows, whole_.pitch()), whole_.packed, whole_.vectors);
            }
            go_on();
        }
    }

    template <typename Array>
    __device__ __forceinline__ void put(Array& array, int stage) {
        if constexpr (!kCopies) {
#pragma unroll
            for (int i = 0; i < kOwn; ++i) shared_store<uint4>(array, place(stage, i), pieces_[i]);
        }
    }

    template <typename Array>
    __device__ __forceinline__ void store_copy(const Array&, int, int, int) const {}

  private:
    // This thread's pieces are of rows of_piece, of_piece + 64, ..
    static constexpr int kOwn = kRows * kChunk / kPiece / kRowsThreads, kRowsOfPieces = kRowsThreads / 4;

    static __device__ __forceinline__ int of_piece() { return thread_anew() / 4; }
    static __device__ __forceinline__ int byte_of_piece() { return thread_anew() % 4 * kPiece; }
    static __device__ __forceinline__ int place(int stage, int i) {
        return place_of_row(of_piece()) + byte_of_piece() + (stage * kRows + i * kRowsOfPieces) * kChunk;
    }

    __device__ __forceinline__ int width_left() const {
        return static_cast<int>(whole_.width) - (chunk_ * kChunk + byte_of_piece()) * Format::kOfByte;
    }
    __device__ __forceinline__ void start() {
        const int64_t row = static_cast<int64_t>(tile_ / slabs_) * kRows + of_piece();
        rows_left_ = tile_ < tiles_ ? left(whole_.lines, row) : 0;
        from_ = whole_.place(rows_left_ > 0 ? row : 0, byte_of_piece() * Format::kOfByte);
    }
    __device__ __forceinline__ void go_on() {
        from_ += whole_.packed && Format::kOfByte == 1 ? kChunk / 2 : kChunk;
        constexpr int kWidth = kChunk * Format::kOfByte;
        if (++chunk_ * kWidth < static_cast<int>(whole_.width)) return;
        chunk_ = 0;
        tile_ += static_cast<int>(gridDim.x);
        start();
    }

    const Operand<Format> whole_;
    const float* scale_;
    int tiles_, slabs_;
    int tile_, chunk_ = 0, rows_left_ = 0;  // of the next pieces
    const uint8_t* from_ = nullptr;
    uint4 pieces_[kOwn];
};

// Floats that are rounded to int8 on their way, whose values go to global memory too. A stage has one or two chunks, so
// that a thread always has 16 elements under way.
template <int kRows>
class QuantizedLeft {
  public:
    static constexpr int kStages = 2, kChunks = 64 / kRows;
    static constexpr int kStage = kRows * kChunk * kChunks;
    static constexpr bool kCopies = false;
    static_assert(kStage == kRowsThreads * kPiece, "a thread has one piece");

    // x: [m, k] of dtype; largest: at least the largest magnitude; q: [m, k].
    __device__ __forceinline__ QuantizedLeft(const void* x, int64_t dtype, int64_t m, int64_t k, const float* largest,
                                             float limit, const int64_t* seed, int64_t node, int8_t* q)
        : x_(static_cast<const uint8_t*>(x)),
          dtype_(dtype),
          m_(m),
          k_(k),
          largest_(largest),
          limit_(limit),
          seed_(seed),
          node_(node),
          q_(q),
          tile_(static_cast<int>(blockIdx.x)) {}

    __device__ __forceinline__ float scale() const { return Rounding(*largest_, limit_).scale; }

    template <typename Array>
    __device__ __forceinline__ void fetch(Array&, int) {
        const int64_t at = row() * k_ + column();
        const int count = own_count();
        if (count <= 0) return;
        if (dtype_ == Dtype::kFloat32)
            load_words<kPiece>(at, count);
        else
            load_words<kPiece / 2>(at, count);
    }

    template <typename Array>
    __device__ __forceinline__ void put(Array& array, int stage) {
        const int count = own_count();
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (count > 0) {
            const int64_t at = row() * k_ + column();
            piece = masked(rounded_piece(at), count);
            if (copies_pieces()) global_store<uint4>(q_ + at, piece);
        }
        const int row_of_tile = thread_anew() / kOfRow, of_row = thread_anew() % kOfRow;
        shared_store<uint4>(
            array, stage * kStage + of_row / 4 * (kRows * kChunk) + place_of_row(row_of_tile) + of_row % 4 * kPiece,
            piece);
        chunk_ += kChunks;
        if (chunk_ * kChunk >= k_) {
            chunk_ = 0;
            tile_ += static_cast<int>(gridDim.x);
        }
    }

    // Rows of values that begin anywhere in a word: lanes write neighbouring words.
    template <typename Array>
    __device__ __forceinline__ void store_copy(const Array& array, int start, int tile, int chunk) const {
        if (copies_pieces()) return;
        constexpr int kWords = kChunk / 4;
        const int64_t first = static_cast<int64_t>(chunk) * kChunk;
        const int count = left(k_, first) < kChunk ? left(k_, first) : kChunk;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < kRows * kWords; i += kRowsThreads) {
            const int row_of_tile = i / kWords, word = i % kWords;
            const int64_t row = static_cast<int64_t>(tile) * kRows + row_of_tile;
            if (row >= m_) break;
            int8_t* to = q_ + (row * k_ + first);
            const int skew = static_cast<int>(reinterpret_cast<uint64_t>(to) & 3u);
            const int place = start + place_of_row(row_of_tile);
            store_word(array, place, 4 * word - skew, count, to);
            if (word == kWords - 1 && skew != 0) store_word(array, place, 4 * kWords - skew, count, to);
        }
    }

  private:
    static constexpr int kOfRow = 4 * kChunks;  // pieces

    __device__ __forceinline__ int64_t row() const {
        return static_cast<int64_t>(tile_) * kRows + thread_anew() / kOfRow;
    }
    __device__ __forceinline__ int column() const { return chunk_ * kChunk + thread_anew() % kOfRow * kPiece; }
    // Elements of this thread's piece, 0 or less if it has none.
    __device__ __forceinline__ int own_count() const {
        const int rest = static_cast<int>(k_) - column();
        return row() >= m_ ? 0 : rest < kPiece ? rest : kPiece;
    }
    __device__ __forceinline__ bool copies_pieces() const { return k_ % kPiece == 0 && is_aligned(q_, kPiece); }

    // words: of a piece.
    template <int words>
    __device__ __forceinline__ void load_words(int64_t at, int count) {
        constexpr int kBytes = 4 * words / kPiece;  // of an element
        const uint8_t* from = x_ + at * kBytes;
        if (count == kPiece && is_aligned(from, 16)) {
#pragma unroll
            for (int i = 0; i < words / 4; ++i) {
                const uint4 four = global_load<uint4>(from + 16 * i);
                raw_[4 * i] = four.x, raw_[4 * i + 1] = four.y, raw_[4 * i + 2] = four.z, raw_[4 * i + 3] = four.w;
            }
        } else if (count == kPiece && is_aligned(from, 8)) {
#pragma unroll
            for (int i = 0; i < words / 2; ++i) {
                const uint2 two = global_load<uint2>(from + 8 * i);
                raw_[2 * i] = two.x, raw_[2 * i + 1] = two.y;
            }
        } else {
            uint32_t loaded[words];
            load_bytes(x_, from, count * kBytes, is_near_end(m_ - row(), k_ * kBytes), loaded);
#pragma unroll
            for (int i = 0; i < words; ++i) raw_[i] = loaded[i];
        }
    }

    // Eight of the 16 elements that were fetched.
    __device__ __forceinline__ void eight(int half, float (&x)[kEight]) const {
        if (dtype_ == Dtype::kFloat32) {
#pragma unroll
            for (int i = 0; i < kEight; ++i) x[i] = __uint_as_float(raw_[kEight * half + i]);
            return;
        }
        const uint32_t* const pairs = raw_ + 4 * half;
        const uint4 words = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        if (dtype_ == Dtype::kBfloat16)
            unpack_bf16(words, x);
        else
            unpack_f16(words, x);
    }

    __device__ __forceinline__ uint4 rounded_piece(int64_t at) const {
        const Rounding round(*largest_, limit_);
        const RoundingBits random(seed_, node_);
        float low[kEight], high[kEight];
        eight(0, low);
        eight(1, high);
        return rounded_sixteen(round, low, high, random, random.sixteen_from(at));
    }

    // The bytes from byte `first` of a row of a chunk on, of which there are `count`, to an aligned word of `to`.
    template <typename Array>
    static __device__ __forceinline__ void store_word(const Array& array, int place, int first, int count, int8_t* to) {
        if (first >= 0 && first + 4 <= count) {
            const int even = place + first / 4 * 4, shift = first % 4 * 8;
            const uint32_t low = shared_load<uint32_t>(array, even);
            const uint32_t high = shift == 0 ? 0u : shared_load<uint32_t>(array, even + 4);
            return global_store<uint32_t>(to + first, __funnelshift_r(low, high, shift));
        }
#pragma unroll 1
        for (int i = first < 0 ? 0 : first; i < first + 4 && i < count; ++i)
            to[i] = static_cast<int8_t>(uint8_t(array[place + i]));
    }

    const uint8_t* x_;
    int64_t dtype_, m_, k_;
    const float* largest_;
    float limit_;
    const int64_t* seed_;
    int64_t node_;
    int8_t* q_;
    int tile_, chunk_ = 0;  // of the next piece
    uint32_t raw_[kPiece];  // as it lies in memory, 16 bits of an element or 32
};
