"""Products of float matrices against sums in double precision and against torch's own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import mm as reference
from tests.runtime.test_gemm_programs import FLOATS, INT8, SEED, assert_same, inputs_of

gqc = torch.ops.gqc
INF, NAN = float("inf"), float("nan")
SHAPES = [(1, 1, 1), (45, 40, 100), (131, 47, 130), (70, 130, 64), (33, 16, 602), (600, 5, 3), (40, 8, 0), (3, 70, 7)]
UNIT = 2.0**-24
"""The largest relative error of one rounding to float32."""


def operands(m: int, n: int, k: int, trans_a: bool, trans_b: bool) -> tuple[Tensor, Tensor]:
    return torch.randn((k, m) if trans_a else (m, k)), torch.randn((n, k) if trans_b else (k, n))


def bound(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> Tensor:
    """Of a float32 sum in any order: (k + 1) u |a| |b| (Higham, Accuracy and Stability, section 3.5)."""
    sizes = reference.mm(a.abs().double(), b.abs().double(), trans_a, trans_b)
    return (a.shape[0 if trans_a else 1] + 1) * UNIT * sizes


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
def test_sums_are_as_exact_as_float32_sums_are(isa: str, trans_a: bool, trans_b: bool) -> None:
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, trans_a, trans_b)
        out = gqc.mm(a, b, trans_a, trans_b)
        assert out.shape == (m, n)
        assert out.dtype is torch.float32
        error = out.double() - reference.mm(a.double(), b.double(), trans_a, trans_b)
        assert bool((error.abs() <= bound(a, b, trans_a, trans_b)).all()), (m, n, k)


def test_errors_are_of_the_size_of_torchs(isa: str) -> None:
    for m, n, k, trans_a in (
        (400, 40, 128, False),
        (400, 128, 40, False),
        (60, 20, 20000, True),
        (24, 130, 3000, True),
    ):
        a, b = operands(m, n, k, trans_a, False)
        want = reference.mm(a.double(), b.double(), trans_a, False)
        error, torchs = gqc.mm(a, b, trans_a, False) - want, (a.t() if trans_a else a) @ b - want
        assert error.norm() <= 3 * torchs.norm()


def test_factors_of_the_contracted_rows(isa: str) -> None:
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, True, False)
        rows = torch.rand(k)
        want = gqc.mm(a, b * rows[:, None], True, False)
        torch.testing.assert_close(gqc.mm(a, b, True, False, rows), want, rtol=0, atol=0)


def test_views_are_read_as_they_lie() -> None:
    a, b, c, rows = torch.randn(90, 20), torch.randn(20, 30), torch.randn(90, 7), torch.rand(90)
    want = a @ b
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    for x, trans_a in ((a, False), (a.t().contiguous(), True), (a.t(), True), (a.t().contiguous().t(), False)):
        for y, trans_b in ((b, False), (b.t().contiguous(), True), (b.t(), True), (b.t().contiguous().t(), False)):
            close(gqc.mm(x, y, trans_a, trans_b), want)
    strided = torch.randn(90, 40)[:, ::2]
    close(gqc.mm(strided, b, False, False), strided @ b)
    for x in (a, a.t().contiguous().t()):
        close(gqc.mm(x, c, True, False, rows), a.t() @ (c * rows[:, None]))


def test_infinite_and_extreme_values_come_out_as_in_float32(isa: str) -> None:
    denormal = torch.finfo(torch.float32).tiny / 64
    a = torch.ones(70, 3)
    a[3, 0], a[5, 1], a[9, 2], a[11, 0], a[12, 0], a[20, 0], a[20, 1] = INF, -INF, NAN, denormal, 3.4e38, INF, -INF
    b = torch.tensor([[1.0], [0.5], [0.25]]).repeat(1, 40)
    b[:, 7] = 0
    torch.testing.assert_close(gqc.mm(a, b, False, False), a @ b, equal_nan=True, rtol=1e-6, atol=0)
    assert bool((gqc.mm(torch.full((64, 1), denormal), torch.ones(1, 20), False, False) == denormal).all())
    c = torch.ones(70, 20)
    c[40, 3] = INF
    torch.testing.assert_close(gqc.mm(a, c, True, False), a.t() @ c, equal_nan=True)
    torch.testing.assert_close(gqc.mm(a[:9, 2:], c[:9], True, False), a[:9, 2:].t() @ c[:9])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, b, c = torch.randn(9000, 100), torch.randn(100, 33), torch.randn(9000, 47)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append((gqc.mm(a, b, False, False), gqc.mm(a, c, True, False), gqc.mm(c, a, True, False)))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("program", [FLOATS, INT8])
def test_product_and_program(isa: str, program: str) -> None:
    for i, (m, n, k) in enumerate(SHAPES):
        trans_b = bool(i % 2)
        a, b = operands(m, n, k, False, trans_b)
        inputs = inputs_of(m, n)
        got = gqc.mm_pointwise(a, b, trans_b, inputs, SEED, program)
        assert_same(got, gqc.mm(a, b, False, trans_b), inputs, program)


def test_a_program_on_heads(isa: str) -> None:
    a, b, weights, size = torch.randn(67, 20), torch.randn(24, 20), [torch.randn(1, 3, 8)], [-1, 3, 8]
    program = "v0 = mul(x0, x1); return float32(sum(v0, -1)), int8(x0, 3, 8, 1)"
    got = gqc.mm_pointwise(a, b, True, weights, SEED, program, size)
    assert_same(got, gqc.mm(a, b, False, True), weights, program, size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_run_torchs_product(dtype: torch.dtype) -> None:
    a, b, rows = torch.randn(40, 9, dtype=dtype), torch.randn(40, 5, dtype=dtype), torch.rand(40, dtype=dtype)
    torch.testing.assert_close(gqc.mm(a, b, True, False, rows), a.t() @ (b * rows[:, None]), rtol=0, atol=0)


def test_what_does_not_fit_is_refused() -> None:
    a, b = torch.randn(8, 3), torch.randn(3, 4)
    for arguments, said in (
        ((a, b, True, False), "do not fit together"),
        ((a, b.double(), False, False), "one floating-point type"),
        ((a, b, False, False, torch.rand(3)), "no factors"),
        ((a, torch.randn(8, 4), True, False, torch.rand(3)), "no factors"),
        ((a, torch.randn(4, 8), True, True, torch.rand(8)), "no factors"),
    ):
        with pytest.raises(KernelError, match=said):
            gqc.mm(*arguments)
    with pytest.raises(KernelError, match="no gradient"):
        gqc.mm(a.requires_grad_(), b, False, False)


def test_opcheck() -> None:
    a, b, inputs = torch.randn(9, 6), torch.randn(9, 4), [torch.rand(9, 1)]
    torch.library.opcheck(gqc.mm.default, (a, b, True, False, torch.rand(9)))
    program = "v0 = mul(x0, x1); return int8(v0, 3, 8, 1), float32(v0)"
    torch.library.opcheck(gqc.mm_pointwise.default, (a, torch.randn(4, 6), True, inputs, SEED, program))
