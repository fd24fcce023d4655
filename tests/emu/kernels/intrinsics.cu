// CUDA's functions on the values of one warp, for tests/emu/test_intrinsics.py.

#include "cuda/scalar.cuh"

// out: 32 results of each form, of the lanes' numbers.
GQC_GLOBAL(32) shuffles(float* out) {
    const int lane = lane_id();
    const float x = static_cast<float>(lane);
    out[lane] = __shfl_sync(kAllLanes, x, lane * 3, 8);
    out[32 + lane] = __shfl_up_sync(kAllLanes, x, 3, 8);
    out[64 + lane] = __shfl_down_sync(kAllLanes, x, 3, 8);
    out[96 + lane] = __shfl_xor_sync(kAllLanes, x, 5, 8);
    out[128 + lane] = __shfl_xor_sync(kAllLanes, x, 16);
    out[160 + lane] = static_cast<float>(__shfl_sync(kAllLanes, static_cast<int64_t>(lane) << 40, 5) >> 40);
    out[192 + lane] = static_cast<float>(__shfl_sync(kAllLanes, static_cast<double>(lane), 33));
}
GQC_EXPORT(shuffles)

// out: a ballot, any, all and the same of nobody and of everybody, for lane 0.
GQC_GLOBAL(32) votes(const int* vote, int64_t mask, int* out) {
    const uint32_t named = static_cast<uint32_t>(mask);
    if (!(named >> lane_id() & 1)) return;
    const uint32_t ballot = __ballot_sync(named, vote[lane_id()]);
    const int any = __any_sync(named, vote[lane_id()]), all = __all_sync(named, vote[lane_id()]);
    if (lane_id() == 0) {
        out[0] = static_cast<int>(ballot);
        out[1] = any;
        out[2] = all;
    }
}
GQC_EXPORT(votes)

GQC_GLOBAL(32) bits(const int* x, const int* y, const int* z, int* out) {
    const int i = lane_id();
    const auto a = static_cast<unsigned>(x[i]), b = static_cast<unsigned>(y[i]), c = static_cast<unsigned>(z[i]);
    out[i] = __dp4a(x[i], y[i], z[i]);
    out[32 + i] = static_cast<int>(__byte_perm(a, b, c));
    out[64 + i] = static_cast<int>(__umulhi(a, b));
    out[96 + i] = __popc(a);
    out[128 + i] = __ffs(x[i]);
    out[160 + i] = __clz(x[i]);
    out[192 + i] = static_cast<int>(__brev(a));
    out[224 + i] = static_cast<int>(__funnelshift_r(a, b, c));
}
GQC_EXPORT(bits)

GQC_GLOBAL(32) conversions(const float* x, int* out) {
    const int i = lane_id();
    out[i] = __float2int_rn(x[i]);
    out[32 + i] = __float2int_rd(x[i]);
    out[64 + i] = __float2int_ru(x[i]);
    out[96 + i] = __float2int_rz(x[i]);
}
GQC_EXPORT(conversions)

GQC_GLOBAL(32) rounded_down(const float* x, const float* y, float* out) {
    const int i = lane_id();
    out[i] = __fadd_rd(x[i], y[i]);
}
GQC_EXPORT(rounded_down)

// out = x as the nearest half; back = that as a float.
GQC_GLOBAL(32) halves(const float* x, int64_t n, uint16_t* out, float* back) {
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) {
        const float16 half = from_float<float16>(x[i]);
        out[i] = half.bits;
        back[i] = to_float(half);
    }
}
GQC_EXPORT(halves)

// out: sum, maximum, minimum, or, exclusive or; then a sum by compare and swap.
GQC_GLOBAL(64) atomics(const int* x, int* out) {
    const int value = x[grid_thread()];
    atomicAdd(out, value);
    atomicMax(out + 1, value);
    atomicMin(out + 2, value);
    atomicOr(out + 3, value);
    atomicXor(out + 4, value);
    int expected = 0;
    for (int before = 0; (before = atomicCAS(out + 5, expected, expected + value)) != expected;) expected = before;
}
GQC_EXPORT(atomics)
