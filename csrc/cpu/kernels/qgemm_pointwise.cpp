// Products of int8 matrices whose rows a pointwise program reads as they are computed, alone or two of one shape. If a
// result of the program is int8, its scale must be known first, so the product is computed twice: of a small contracted
// size, that costs less than to write it and to read it back.

#include "cpu/gemm/floats/program_rows.h"
#if defined(__AMX_BF16__)
#    include "cpu/gemm/bf16x3/product.h"
#endif
#include "cpu/gemm/product.h"
#include "cpu/gemm/program_output.h"

namespace gqc::GQC_ISA {
namespace {

// What the program of a call consists of; see Program.
struct Call {
    int64_t dtype;  // to which the product is rounded
    const int64_t* numbers;
    const void* const* inputs;
    void* const* outputs;
    const int64_t* seed;
};

// `rows` are read first, `rows_again` if the program looks twice.
template <typename Rows>
Error run(const Product& product, const SecondProduct& second, const Call& call, const Rows& rows,
          const StoredRows& rows_again) {
    const Division& division = product.division();
    const int64_t n = product.shape().n;
    Program program(call.numbers, call.inputs, call.outputs, call.seed, division.block_rows * n, division.chunks());
    Error error = program.error();
    if (error) return error;
    const bool twice = program.looks_twice();
    error = product.write(rows, ProgramOutput{program, second, n, call.dtype, division.chunk_rows, twice});
    if (!error && twice) {
        program.begin_second_look();
        error = product.write(rows_again, ProgramOutput{program, second, n, call.dtype, division.chunk_rows, false});
    }
    if (!error) program.finish();
    return error;
}

// Likewise of products of floats.
template <typename Product>
Error run(int64_t threads, const Product& first, const Product& second, const Call& call) {
    if (!first.ok() || !second.ok()) return kOutOfMemory;
    const Shape& shape = first.shape();
    const Division division(shape);
    Program program(call.numbers, call.inputs, call.outputs, call.seed, division.block_rows * shape.n,
                    division.chunks());
    if (const Error error = program.error()) return error;
    for (int look = program.looks_twice() ? 0 : 1; look < 2; ++look) {
        const ProgramRows<Product> rows{program, first, second, division.chunk_rows, look == 0};
        if (const Error error = for_float_blocks(threads, shape, division, rows)) return error;
        if (look == 0) program.begin_second_look();
    }
    program.finish();
    return nullptr;
}

}  // namespace

// a: [m, k], b: [k, n], or [n, k] where trans_b; int8; a_scale, b_scale: one float; dtype: to which the product is
// rounded; a2, a2_scale, b2, b2_scale, bias2, k2, trans_b2: a second product, of the same shape, or no a2_scale;
// numbers, inputs, outputs, seed: of the program (csrc/cpu/pointwise/program.h), whose input 0 is the product and whose
// input 1 is the second, if there is one.
GQC_KERNEL(qgemm_pointwise)(int64_t threads, const int8_t* a, const float* a_scale, const int8_t* b,
                            const float* b_scale, int64_t m, int64_t n, int64_t k, int64_t trans_b, int64_t dtype,
                            const int8_t* a2, const float* a2_scale, const int8_t* b2, const float* b2_scale,
                            const float* bias2, int64_t k2, int64_t trans_b2, const int64_t* numbers,
                            const void* const* inputs, void* const* outputs, const int64_t* seed) {
    const Product product(threads, {m, n, k}, false, b, false, trans_b != 0,
                          {a_scale, b_scale, nullptr, nullptr, false});
    const SecondProduct second(threads, m, n, {a2, a2_scale, b2, b2_scale, bias2, k2, trans_b2});
    if (!product.ok() || !second.ok()) return kOutOfMemory;
    if (!product.by_rows()) {
        if (const Error error = product.contract_with(a, false)) return error;
    }
    const StoredRows rows{product.left(a, false)};
    return run(product, second, {dtype, numbers, inputs, outputs, seed}, rows, rows);
}

// x: [m, k] of x_dtype; absmax: one float, at least the largest |x|, or null to look for it; q: [m, k] int8 and scale:
// one float are what quantize makes of x, with the program's seed. The rest is as in qgemm_pointwise, with q in the
// place of a.
GQC_KERNEL(quantize_qgemm_pointwise)(int64_t threads, const void* x, int64_t x_dtype, const float* absmax, int64_t node,
                                     int64_t bits, int64_t stochastic, int8_t* q, float* scale, const int8_t* b,
                                     const float* b_scale, int64_t m, int64_t n, int64_t k, int64_t trans_b,
                                     int64_t dtype, const int8_t* a2, const float* a2_scale, const int8_t* b2,
                                     const float* b2_scale, const float* bias2, int64_t k2, int64_t trans_b2,
                                     const int64_t* numbers, const void* const* inputs, void* const* outputs,
                                     const int64_t* seed) {
    const Product product(threads, {m, n, k}, false, b, false, trans_b != 0, {scale, b_scale, nullptr, nullptr, false});
    const SecondProduct second(threads, m, n, {a2, a2_scale, b2, b2_scale, bias2, k2, trans_b2});
    if (!product.ok() || !second.ok()) return kOutOfMemory;
    const Call call{dtype, numbers, inputs, outputs, seed};
    const StoredRows stored{product.left(q, false)};
    float found = 0;
    typed(x, x_dtype, [&](auto* values) { found = absmax ? *absmax : GQC_ISA::absmax(threads, values, m * k); });
    const QuantizedRows rows{x, x_dtype, q, k, {seed, node, bits, stochastic != 0, found, scale}, is_streamed(m * k)};
    if (product.by_rows()) return run(product, second, call, rows, stored);
    typed(x, x_dtype, [&](auto* values) { rows.rounding.apply(values, 0, m * k, q); });
    if (const Error error = product.contract_with(q, false)) return error;
    return run(product, second, call, stored, stored);
}

// a: [m, k]; b: [k, n], or [n, k] where trans_b; a2, narrow_a2, b2, k2, trans_b2: likewise of a second product, or
// null; narrow_a, bf16x3: as in mm. The rest is as in qgemm_pointwise.
GQC_KERNEL(mm_pointwise)(int64_t threads, const void* a, int64_t narrow_a, const float* b, int64_t m, int64_t n,
                         int64_t k, int64_t trans_b, const void* a2, int64_t narrow_a2, const float* b2, int64_t k2,
                         int64_t trans_b2, [[maybe_unused]] int64_t bf16x3, const int64_t* numbers,
                         const void* const* inputs, void* const* outputs, const int64_t* seed) {
    const Shape shape{m, n, k}, second{m, n, k2};
    const FloatMatrix left{a, k, narrow_a != 0}, second_left{a2, k2, narrow_a2 != 0};
    const Call call{kFloat32, numbers, inputs, outputs, seed};
#if defined(__AMX_BF16__)
    if (bf16x3)
        return run(threads, SplitProduct(shape, left, b, trans_b != 0),
                   SplitProduct(second, second_left, b2, trans_b2 != 0), call);
#endif
    return run(threads, FloatProduct(shape, left, b, trans_b != 0),
               FloatProduct(second, second_left, b2, trans_b2 != 0), call);
}

}  // namespace gqc::GQC_ISA
