"""Products of float matrices in three products of bfloat16 against sums in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import mm as reference
from tests.runtime.test_gemm_programs import FLOATS, INT8, SEED, assert_same, inputs_of
from tests.runtime.test_mm import INF, NAN, SHAPES, UNIT, bound, operands

gqc = torch.ops.gqc
PRECISION = "bf16x3"
MORE_SHAPES = [(64, 2048, 17), (40, 17, 2048), (5, 33, 3000), (200, 64, 96)]

ALL_BITS_NAN = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
"""Rounded as a number it would wrap around to 0."""

needs_tiles = pytest.mark.skipif(
    not native.multiplies_bf16x3(), reason=f"{native.isa()} has no tiles that multiply bfloat16"
)


def sizes(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    return reference.mm(a.abs().double(), b.abs().double(), trans_a, trans_b)


@needs_tiles
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
def test_errors_are_those_of_the_format(trans_a: bool, trans_b: bool) -> None:
    differ = False
    for m, n, k in SHAPES + MORE_SHAPES:
        a, b = operands(m, n, k, trans_a, trans_b)
        out = gqc.mm(a, b, trans_a, trans_b, None, PRECISION)
        error = (out - reference.mm(a.double(), b.double(), trans_a, trans_b)).abs()
        sums = 3 * bound(a, b, trans_a, trans_b)
        assert bool((error <= reference.LEFT_OUT * sizes(a, b, trans_a, trans_b) + sums).all()), (m, n, k)
        if trans_a and trans_b:  # torch's product
            continue
        same = (out - reference.mm(a, b, trans_a, trans_b, None, PRECISION)).abs()
        assert bool((same <= sums + UNIT * out.abs()).all()), (m, n, k)
        differ |= not torch.equal(out, gqc.mm(a, b, trans_a, trans_b))
    assert differ or (trans_a and trans_b)


@needs_tiles
def test_typical_errors() -> None:
    """About 4e-6 of the result, as torch's float32 matmul precision "high"."""
    for m, n, k, trans_a in ((900, 40, 128, False), (900, 128, 40, False), (128, 40, 20000, True)):
        a, b = operands(m, n, k, trans_a, False)
        want = reference.mm(a.double(), b.double(), trans_a, False)
        assert torch.dist(gqc.mm(a, b, trans_a, False, None, PRECISION).double(), want) <= 8e-6 * want.norm()


@needs_tiles
def test_factors_of_the_contracted_rows() -> None:
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, True, False)
        for left, right in ((a, b), (b, a)):
            rows = torch.rand(k)
            want = gqc.mm(left, right * rows[:, None], True, False, None, PRECISION)
            torch.testing.assert_close(gqc.mm(left, right, True, False, rows, PRECISION), want, rtol=0, atol=0)


@needs_tiles
@pytest.mark.parametrize("special", [*map(torch.tensor, (INF, -INF, NAN, 3.4e38, -3.4e38)), ALL_BITS_NAN])
def test_what_bfloat16_does_not_hold_is_multiplied_in_float32(special: Tensor) -> None:
    a, b = torch.ones(300, 35), torch.full((35, 20), 0.5)
    b[:, 7] = 0
    a[40, 3], a[170, 34] = special, special
    got = gqc.mm(a, b, False, False, None, PRECISION)
    torch.testing.assert_close(got, a @ b, equal_nan=True, rtol=1e-5, atol=0)
    c = torch.ones(300, 6)
    got = gqc.mm(a, c, True, False, None, PRECISION)
    torch.testing.assert_close(got, a.t() @ c, equal_nan=True, rtol=1e-5, atol=0)
    c[299, 5] = special
    got = gqc.mm(torch.ones(300, 35), c, True, False, None, PRECISION)
    torch.testing.assert_close(got, torch.ones(35, 300) @ c, equal_nan=True, rtol=1e-5, atol=0)
    b[2, 2] = special
    for trans_b in (False, True):
        right = b.t().contiguous() if trans_b else b
        got = gqc.mm(torch.ones(50, 35), right, False, trans_b, None, PRECISION)
        torch.testing.assert_close(got, torch.ones(50, 35) @ b, equal_nan=True, rtol=1e-5, atol=0)


@needs_tiles
def test_small_values() -> None:
    """Values whose low part is below 2^-126 are rounded to bfloat16, and those below 2^-126 are 0."""
    tiny = torch.finfo(torch.float32).tiny
    a = torch.tensor([[tiny * 1.01], [tiny / 4], [0.0], [-0.0], [tiny * 2**20 * 1.00390625]]).repeat(4, 1)
    out = gqc.mm(a, torch.ones(1, 20), False, False, None, PRECISION)
    assert bool(((out - a).abs() <= torch.maximum(2.0**-9 * a.abs(), torch.tensor(tiny))).all())
    assert bool((out[4::5] == a[4::5]).all())


@needs_tiles
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, b, c = torch.randn(9000, 100), torch.randn(100, 33), torch.randn(9000, 47)
    a[5000, 50] = INF
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            products = [gqc.mm(a, b, False, False, None, PRECISION), gqc.mm(a, c, True, False, None, PRECISION)]
            results.append(products)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)


@needs_tiles
@pytest.mark.parametrize("program", [FLOATS, INT8])
def test_products_and_program(program: str) -> None:
    for i, (m, n, k) in enumerate(SHAPES):
        trans_b = bool(i % 2)
        a, b = operands(m, n, k, False, trans_b)
        inputs = inputs_of(m, n)
        got = gqc.mm_pointwise(a, b, trans_b, inputs, SEED, program, None, None, None, False, PRECISION)
        product = gqc.mm(a, b, False, trans_b, None, PRECISION)
        assert_same(got, product, inputs, program)


@needs_tiles
def test_two_products_and_a_program() -> None:
    (a, b), (a2, b2) = operands(131, 47, 64, False, False), operands(131, 47, 33, False, True)
    second = (a2, b2, True)
    (got,) = gqc.mm_pointwise(a, b, False, [], None, "v0 = add(x0, x1); return float32(v0)", None, *second, PRECISION)
    want = gqc.mm(a, b, False, False, None, PRECISION) + gqc.mm(a2, b2, False, True, None, PRECISION)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in native.isas() if name != "amx"])
def test_other_instruction_sets_multiply_in_float32(name: str) -> None:
    a, b = torch.randn(50, 20), torch.randn(20, 30)
    program = "v0 = relu(x0); return float32(v0)"
    with native.use_isa(name):
        torch.testing.assert_close(
            gqc.mm(a, b, False, False, None, PRECISION), gqc.mm(a, b, False, False), rtol=0, atol=0
        )
        (got,) = gqc.mm_pointwise(a, b, False, [], None, program, None, None, None, False, PRECISION)
        torch.testing.assert_close(got, gqc.mm(a, b, False, False).relu(), rtol=0, atol=0)


def test_parts_of_the_reference() -> None:
    x = torch.cat([torch.randn(1000), torch.tensor([0.0, 1.0, -2.0, 3.38e38, 1e-20])])
    high, low = reference.halves(x)
    assert torch.equal(high, high.bfloat16().double())
    assert torch.equal(low, low.bfloat16().double())
    assert bool(((x - high - low).abs() <= 2.0**-17 * x.abs()).all())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(KernelError, match=r"gqc.mm: precision 'tf32' is none of 'fp32', 'bf16x3'"):
        gqc.mm(torch.ones(2, 2), torch.ones(2, 2), False, False, None, "tf32")


def test_opcheck() -> None:
    a, b = torch.randn(9, 6), torch.randn(9, 4)
    torch.library.opcheck(gqc.mm.default, (a, b, True, False, torch.rand(9), PRECISION))
