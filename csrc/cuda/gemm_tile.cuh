// Tiles of a product: how operands lie in memory so that a warp takes them without conflicts and without moving a
// register, and the product of a chunk.
//
// mma_s8 multiplies columns of right (as its rows, so the output comes transposed) by rows of left. A row of left is 64
// bytes, of which lane t of a row takes 16 at once: words 4 t and 4 t + 1 for a first product, the other two for a
// second. So contracted indices meet in another order than they lie in, the same one for both operands. Right lies in
// quads, the 16 bytes that a lane hands to a product: words of two columns. Columns are spread over products so that a
// lane's sums are 8 neighbours of an output row. Of 4-bit values a word holds 8 contracted indices instead of 4, and
// mma_s4 takes the words as mma_s8 does, so their tiles are the same.
#pragma once

#include "cuda/gemm_operand.cuh"

constexpr int kTileRows = 128;  // that kTileThreads load
constexpr int kTileThreads = 128;
constexpr int kPieces = kTileRows * kChunk / kPiece / kTileThreads;  // of a thread
static_assert(kPieces == 4, "a thread transposes blocks of 4 rows");

// threadIdx.x, read anew: what is computed from it takes no register of a loop that calls this.
__device__ __forceinline__ int thread_anew() {
#ifdef GQC_EMULATED
    return static_cast<int>(threadIdx.x);
#else
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#endif
}

// Of a row of left. Every other 16 rows have their odd and even rows swapped, so that lanes that write words of two
// such runs use different banks.
__device__ __forceinline__ int place_of_row(int row) {
    return (row ^ (row >> 4 & 1)) * kChunk;
}

// Of the quad that a lane takes for product `step` of the chunk, of the columns of `group`, 16 of the 64 from group / 4
// on. Lanes of second products lie crosswise, so that words of a chunk are written to different banks.
__device__ __forceinline__ int place_of_quad(int group, int step, int lane) {
    return ((group * 2 + step) * kWarp + (lane ^ (step * 4))) * kPiece;
}

// Of a word of a column of right.
__device__ __forceinline__ int place_in_quads(int column, int word) {
    const int group = column / 64 * 4 + column % 8 / 2, lane = column % 64 / 8 * 4 + word / 4;
    return place_of_quad(group, word % 4 / 2, lane) + word % 2 * 8 + column % 2 * 4;
}

// Rows 0..3 of 4 bytes become columns.
__device__ __forceinline__ void transpose(uint32_t (&v)[4]) {
    const uint32_t low01 = __byte_perm(v[0], v[1], 0x5140), high01 = __byte_perm(v[0], v[1], 0x7362);
    const uint32_t low23 = __byte_perm(v[2], v[3], 0x5140), high23 = __byte_perm(v[2], v[3], 0x7362);
    v[0] = __byte_perm(low01, low23, 0x5410), v[1] = __byte_perm(low01, low23, 0x7632);
    v[2] = __byte_perm(high01, high23, 0x5410), v[3] = __byte_perm(high01, high23, 0x7632);
}

// Rows 0..7 of 8 halves become columns.
__device__ __forceinline__ void transpose(uint32_t (&v)[8]) {
    uint32_t even[4], odd[4];  // columns, a byte for two rows
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        even[i] = (v[2 * i] & 0x0f0f0f0fu) | (v[2 * i + 1] & 0x0f0f0f0fu) << 4;
        odd[i] = (v[2 * i] >> 4 & 0x0f0f0f0fu) | (v[2 * i + 1] & 0xf0f0f0f0u);
    }
    transpose(even);
    transpose(odd);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[2 * i] = even[i], v[2 * i + 1] = odd[i];
}

template <bool kWhole>
struct PitchOf {
    using Type = int64_t;
};
template <>
struct PitchOf<true> {  // a size of the product's output
    using Type = int32_t;
};

// One thread's share of the tiles of an operand, chunk by chunk, on its way from global to shared memory. kWhole: the
// operand is int8, its lines do not run along the contracted index, and its pieces are whole and aligned.
template <typename Format, bool kWhole>
struct TileShare {
    static constexpr bool kHalves = Format::kOfByte == 2;
    static_assert(!(kHalves && kWhole), "pieces across the contracted index are of 8 bytes");

    uint4 pieces[kPieces];

    // thread: 0 .. kTileThreads; tiles start at row `row`, the first at contracted index `k`; they end at `last`.
    __device__ __forceinline__ TileShare(const Operand<Format>& x, int thread, int64_t row, int64_t k, int64_t last)
        : pitch_(static_cast<typename PitchOf<kWhole>::Type>(x.pitch())),
          begin_(x.values),
          packed_(!kWhole && x.packed),
          along_k_(!kWhole && x.along_k),
          vectors_(x.vectors) {
        const int64_t line = along_k_ ? row + thread / 4 : k + thread % kPiece * (kWord * Format::kOfByte);
        const int64_t at = along_k_ ? k + thread % 4 * (kPiece * Format::kOfByte) : row + thread / kPiece * kPiece;
        from_ = x.place(line, at);
        lines_ = left(along_k_ ? x.lines : last, line);
        width_ = left(along_k_ ? last : x.width, at);
        if (width_ <= 0 && !along_k_) lines_ = 0;
    }

    // Reads the chunk and goes on to the next.
    __device__ __forceinline__ void load() {
        if (kHalves && !along_k_)
            load_across();
        else
            load_pieces();
        if (along_k_) {
            from_ += packed_ && !kHalves ? kChunk / 2 : kChunk;
            width_ -= kChunk * Format::kOfByte;
        } else {
            from_ += kChunk * Format::kOfByte * static_cast<int64_t>(pitch_);
            lines_ -= kChunk * Format::kOfByte;
        }
    }

    // into the tile at `start` of an array of bytes, as rows of left or as quads of right. Where is put as a sum of few
    // numbers of the thread and constants, to spare registers.
    template <typename Array>
    __device__ __forceinline__ void store(Array& array, int start, bool rows) const {
        const int thread = thread_anew() % kTileThreads;
        if (along_k_) return store_lines(thread, array, start, rows);
        const int row = thread / kPiece * kPiece, word = thread % kPiece;
        const int even = start + (rows ? place_of_row(row) + 4 * word : place_in_quads(row, word));
        const int odd = start + (rows ? place_of_row(row + 1) + 4 * word - kChunk : place_in_quads(row + 8, word));
        const auto store_columns = [&](int first, auto... of_line) {
            uint32_t block[sizeof...(of_line)] = {of_line...};
            transpose(block);
#pragma unroll
            for (int i = 0; i < static_cast<int>(sizeof...(of_line)); ++i) {
                const int c = first + i;
                if (rows)
                    shared_store<uint32_t>(array, (c % 2 ? odd : even) + c * kChunk, block[i]);
                else
                    shared_store<uint32_t>(array, (c < 8 ? even : odd) + c % 8 / 2 * kQuads + c % 2 * 4, block[i]);
            }
        };
        const auto& p = pieces;
        if constexpr (kHalves) {
            store_columns(0, p[0].x, p[0].z, p[1].x, p[1].z, p[2].x, p[2].z, p[3].x, p[3].z);
            store_columns(8, p[0].y, p[0].w, p[1].y, p[1].w, p[2].y, p[2].w, p[3].y, p[3].w);
        } else {
            store_columns(0, p[0].x, p[1].x, p[2].x, p[3].x);
            store_columns(4, p[0].y, p[1].y, p[2].y, p[3].y);
            store_columns(8, p[0].z, p[1].z, p[2].z, p[3].z);
            store_columns(12, p[0].w, p[1].w, p[2].w, p[3].w);
        }
    }

  private:
    static constexpr int kQuads = 2 * kWarp * kPiece;  // bytes of the quads of 16 columns
    static constexpr int kWord = 4;

    __device__ __forceinline__ void load_pieces() {
        const int step = along_k_ ? kTileThreads / 4 : 1;
        const uint8_t* from = from_;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int lines = lines_ - i * step;
            pieces[i] = make_uint4(0, 0, 0, 0);
            if (lines > 0 && (kWhole || width_ > 0))
                pieces[i] =
                    kWhole ? global_load<uint4>(from)
                           : load_piece<Format>(begin_, from, width_, is_near_end(lines, pitch_), packed_, vectors_);
            from += step * static_cast<int64_t>(pitch_);
        }
    }

    // 8 lines of 8 bytes, two a piece.
    __device__ __forceinline__ void load_across() {
        const uint8_t* from = from_;
        const auto line = [&](int i) {
            uint2 halves = make_uint2(0, 0);
            if (lines_ > i)
                halves = load_halves_across(begin_, from, width_, is_near_end(lines_ - i, pitch_), vectors_);
            from += pitch_;
            return halves;
        };
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const uint2 first = line(2 * i), second = line(2 * i + 1);
            pieces[i] = make_uint4(first.x, first.y, second.x, second.y);
        }
    }

    template <typename Array>
    __device__ __forceinline__ void store_lines(int thread, Array& array, int start, bool rows) const {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int row = (thread + i * kTileThreads) / 4, word = thread % 4 * 4;
            if (rows) {
                shared_store<uint4>(array, start + place_of_row(row) + 4 * word, pieces[i]);
            } else {
                const int first = start + place_in_quads(row, word), second = start + place_in_quads(row, word + 2);
                shared_store<uint32_t>(array, first, pieces[i].x);
                shared_store<uint32_t>(array, first + 8, pieces[i].y);
                shared_store<uint32_t>(array, second, pieces[i].z);
                shared_store<uint32_t>(array, second + 8, pieces[i].w);
            }
        }
    }

    const uint8_t* from_;  // the first piece
    typename PitchOf<kWhole>::Type pitch_;
    const uint8_t* begin_;  // of the matrix
    int lines_, width_;     // left from the first piece on
    bool packed_, along_k_, vectors_;
};

// Sums of a warp: rows of left, a multiple of 16, and 64 columns, in fragments of a product.
constexpr int kWarpRows = 32, kWarpColumns = 64;

template <typename Format, int kRows = kWarpRows>
struct WarpSums {
    static constexpr int kFragments = kRows / 8;

    int32_t values[kWarpColumns / 16][kFragments][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& columns : values)
#pragma unroll
            for (auto& fragment : columns)
#pragma unroll
                for (int32_t& value : fragment) value = 0;
    }

    // at(i + 1, ..) becomes at(i, ..), so that a loop that is not unrolled can go over registers.
    __device__ __forceinline__ void next_fragment() {
#pragma unroll
        for (auto& columns : values)
#pragma unroll
            for (int i = 0; i < kFragments - 1; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) columns[i][j] = columns[i + 1][j];
    }

    // The sum of row 8 i + row_of_lane(e) and column column_of_lane() + c, for e = 0, 1 and c = 0 .. 7.
    __device__ __forceinline__ int32_t at(int i, int e, int c) const { return values[c / 2][i][c % 2 * 2 + e]; }
    static __device__ __forceinline__ int row_of_lane(int e) { return lane_id() % 4 * 2 + e; }
    static __device__ __forceinline__ int column_of_lane() { return lane_id() / 4 * kEight; }

    // Adds the product of a chunk. left: a tile at `start` of an array, of which the warp takes the rows from `row` on,
    // a multiple of kRows; quad(group, step): this lane's quad of right.
    template <typename Array, typename Quads>
    __device__ __forceinline__ void add(const Array& left, int start, int row, const Quads& quad) {
        const int lane = thread_anew() % kWarp, g = lane / 4 ^ (kRows % 32 ? row / 16 % 2 : 0);
        const int at = start + row * kChunk + lane % 4 * kPiece;
        uint4 rows[kFragments];
#pragma unroll
        for (int i = 0; i < kFragments; ++i)
            rows[i] = shared_load<uint4>(left, at + 8 * i * kChunk + (g ^ i / 2) * kChunk);  // as place_of_row
#pragma unroll
        for (int group = 0; group < kWarpColumns / 16; ++group) {
            const uint4 first = quad(group, 0), second = quad(group, 1);
#pragma unroll
            for (int i = 0; i < kFragments; ++i) Format::multiply(values[group][i], first, rows[i].x, rows[i].y);
#pragma unroll
            for (int i = 0; i < kFragments; ++i) Format::multiply(values[group][i], second, rows[i].z, rows[i].w);
        }
    }
};
