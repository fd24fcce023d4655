"""Rows compressed to few bits against their reference, bit for bit, and against what TinyKG proves of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import compress_rows as reference
from tests.runtime.backends import BACKENDS, on_backend

gqc = torch.ops.gqc
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
DTYPES, STATS, BITS = (FLOAT, BFLOAT, HALF), (FLOAT, BFLOAT), (1, 2, 4, 8)


def draw_seed() -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,))


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def assert_equals_reference(
    x: Tensor, bits: int, seed: Tensor | None, stats: torch.dtype, out: torch.dtype, group: int = 0
) -> None:
    got = gqc.compress_rows(x, bits, seed, 3, stats, group)
    want = reference.compress_rows(x, bits, seed, 3, stats, group)
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)
    how = bits, x.shape[-1], out, group
    assert_same(gqc.decompress_rows(*got, *how), reference.decompress_rows(*want, *how))


def round_trip(x: Tensor, bits: int, seed: Tensor | None = None, stats: torch.dtype = FLOAT) -> Tensor:
    return gqc.decompress_rows(*gqc.compress_rows(x, bits, seed, 0, stats), bits, x.shape[1], x.dtype)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 20),
    width=st.integers(0, 70),
    bits=st.sampled_from(BITS),
    stochastic=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    out=st.sampled_from(DTYPES),
    stats=st.sampled_from(STATS),
    offset=st.integers(0, 5),
    scale=st.sampled_from([1.0, 1e-3, 1e3]),
    group=st.sampled_from([0, 8, 24, 64]),
    backend=st.sampled_from(BACKENDS),
)
def test_equals_reference(
    rows: int,
    width: int,
    bits: int,
    stochastic: bool,
    dtype: torch.dtype,
    out: torch.dtype,
    stats: torch.dtype,
    offset: int,
    scale: float,
    group: int,
    backend: str,
) -> None:
    memory = (torch.randn(offset + rows * width) * scale + torch.randn(())).to(dtype)
    x, seed = memory[offset:].view(rows, width), draw_seed() if stochastic else None
    with on_backend(backend):
        assert_equals_reference(x, bits, seed, stats, out, group)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("rows", "width"), [(3, 9001), (1, 4096), (700, 64), (90, 257), (5, 2056), (3000, 3)])
def test_large_tensors_equal_reference(backend: str, threads: int, bits: int, rows: int, width: int) -> None:
    assert_equals_reference(torch.randn(rows, width), bits, draw_seed(), BFLOAT, BFLOAT)


@pytest.mark.parametrize(
    ("shape", "group"), [((9001,), 4104), ((9001,), 256), ((3, 4, 33), 16), ((2, 0, 5), 8), ((0,), 8)]
)
def test_groups_of_tensors_of_any_rank_equal_reference(
    backend: str, threads: int, shape: tuple[int, ...], group: int
) -> None:
    for bits in BITS:
        assert_equals_reference(torch.randn(shape), bits, draw_seed(), BFLOAT, FLOAT, group)


def test_groups_are_rows_of_their_own(backend: str) -> None:
    x, seed = torch.randn(6, 96), draw_seed()
    by_group, by_row = gqc.compress_rows(x, 2, seed, 0, FLOAT, 32), gqc.compress_rows(x.view(18, 32), 2, seed, 0, FLOAT)
    for a, b, width in zip(by_group, by_row, (24, 3, 3), strict=True):
        assert torch.equal(a, b.view(6, width))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stats", STATS)
def test_hard_rows_equal_reference(backend: str, dtype: torch.dtype, stats: torch.dtype) -> None:
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    rows = [
        [0.0, -0.0, 0.0],
        [1.1, 1.1, 1.1],
        [math.nan, 1.0, 2.0],
        [1.0, math.inf, 2.0],
        [-math.inf, 3.0, math.nan],
        [largest, -largest, 0.0],
        [largest, largest, largest],
        [0.9 * largest, largest, largest],
        [least, 0.0, -least],
        [1e-40, 2e-40, 0.0],
        [1000.0, 1000.5, 1001.0],
    ]
    x = torch.tensor(rows, dtype=torch.float64).to(dtype).repeat(1, 11)
    for bits in BITS:
        assert_equals_reference(x, bits, draw_seed(), stats, dtype)


@pytest.mark.parametrize("stats", STATS)
@pytest.mark.parametrize("bits", BITS)
def test_what_is_not_finite_is_never_hidden(backend: str, bits: int, stats: torch.dtype) -> None:
    x = torch.randn(6, 50)
    x[1, 7], x[3, 49], x[5] = math.nan, math.inf, torch.tensor([3e38, -3e38]).repeat(25)  # the last range overflows
    back = round_trip(x, bits, draw_seed(), stats)
    assert back[[1, 3, 5]].isnan().all()
    assert back[[0, 2, 4]].isfinite().all()


@pytest.mark.parametrize("bits", BITS)
def test_constant_rows_and_ends_are_exact(backend: str, bits: int) -> None:
    """In float32; in bfloat16 a constant is kept as its own digits and, in R, half of those that are left."""
    constants = torch.randn(40, 1).expand(40, 33)
    assert torch.equal(round_trip(constants, bits, draw_seed()), constants)
    torch.testing.assert_close(round_trip(constants, bits, draw_seed(), BFLOAT), constants, rtol=2.0**-7, atol=0)
    low = constants.bfloat16()
    assert torch.equal(round_trip(low, bits, draw_seed(), BFLOAT), low)
    levels = torch.arange(2.0**bits).expand(3, -1)
    assert torch.equal(round_trip(levels, bits, draw_seed()), levels)


def test_a_group_that_is_not_finite_leaves_its_row_alone(backend: str) -> None:
    x = torch.randn(4, 44)
    x[0, 3], x[1, 16], x[2, 43] = math.nan, math.inf, -math.inf
    for bits in BITS:
        compressed = gqc.compress_rows(x, bits, draw_seed(), 0, BFLOAT, 16)
        back = gqc.decompress_rows(*compressed, bits, 44, FLOAT, 16)
        lost = torch.zeros(4, 44, dtype=torch.bool)
        lost[0, :16], lost[1, 16:32], lost[2, 32:] = True, True, True
        assert torch.equal(back.isnan(), lost)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("stats", STATS)
@pytest.mark.parametrize("group", [0, 8])
def test_is_unbiased_with_the_bounded_variance(bits: int, stats: torch.dtype, group: int) -> None:
    """Over n draws, within 6 standard errors: the mean, the variance of a group below its d R^2 / (4 B^2), and how
    elements vary together, which those of a pair may by 2^-9 of a bin squared."""
    d, n = 21, 5000
    row = torch.randn(d)
    packed, zero, spread = gqc.compress_rows(row.expand(n, d), bits, draw_seed(), 0, stats, group)
    errors = gqc.decompress_rows(packed, zero, spread, bits, d, FLOAT, group).double() - row
    steps = (spread[0].double() / (2**bits - 1)).repeat_interleave(group or d)[:d]
    assert (errors.abs() < 1.001 * steps).all()
    errors /= steps
    assert (errors.mean(0).abs() < 6 * 0.5 / n**0.5 + 1e-4).all()
    for part in errors.split(group or d, 1):
        squares = part.square().sum(1)
        assert squares.mean() < 1.0001 * part.shape[1] / 4 + 6 * squares.std() / n**0.5
    together = (errors.T @ errors / n).fill_diagonal_(0)
    assert (together.abs() < 2**-9 + 6 * 0.25 / n**0.5).all()


@pytest.mark.parametrize("width", [1025, 5003])
@pytest.mark.parametrize("bits", BITS)
def test_errors_of_a_wide_row_cancel(bits: int, width: int) -> None:
    """Their sum stays within 6 standard errors of a sum of pairs that vary together by 2^-9 of a bin squared."""
    row = torch.rand(1, width)
    errors = (round_trip(row, bits, draw_seed()).double() - row) * (2**bits - 1) / (row.max() - row.min())
    assert errors.abs().max() < 1.001
    assert errors.sum().abs() < 6 * (width * (0.25 + 2**-9)) ** 0.5 + 1e-4 * width


def test_nearest_rounding_errs_by_half_a_step() -> None:
    x = torch.randn(50, 40)
    step = (x.amax(1) - x.amin(1)) / 15
    assert ((round_trip(x, 4) - x).abs().amax(1) <= 0.5001 * step).all()


def test_refusals_say_what_is_wrong() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(KernelError, match="compress_rows: bits=3 is none of 1, 2, 4, 8"):
        gqc.compress_rows(x, 3, None, 0, FLOAT)
    with pytest.raises(KernelError, match=r"takes rows \[\*, W\] and got a scalar"):
        gqc.compress_rows(torch.tensor(1.0), 2, None, 0, FLOAT)
    with pytest.raises(KernelError, match="group=12 is no multiple of 8, so its groups would share bytes: take 16"):
        gqc.compress_rows(x, 2, None, 0, FLOAT, 12)
    with pytest.raises(KernelError, match=r"keeps Z and R in float32 or bfloat16, not in torch\.float16"):
        gqc.compress_rows(x, 2, None, 0, HALF)
    with pytest.raises(KernelError, match=r"knows float32, bfloat16 and float16 and got torch\.float64"):
        gqc.compress_rows(x.double(), 2, None, 0, FLOAT)
    with pytest.raises(KernelError, match="no gradient"):
        gqc.compress_rows(x.clone().requires_grad_(), 2, None, 0, FLOAT)
    packed, zero, spread = gqc.compress_rows(x, 2, None, 0, FLOAT)
    with pytest.raises(
        KernelError, match=r"are not those that gqc\.compress_rows gives for rows \[4, 6\], which are \[4, 1\]"
    ):
        gqc.decompress_rows(packed, zero[:2], spread, 2, 6, FLOAT)
    with pytest.raises(KernelError, match="rows of 9 values of 2 bits"):
        gqc.decompress_rows(packed, zero, spread, 2, 9, FLOAT)


def test_opcheck() -> None:
    x = torch.randn(5, 7)
    torch.library.opcheck(gqc.compress_rows.default, (x, 2, draw_seed(), 1, BFLOAT))
    compressed = gqc.compress_rows(x, 4, None, 1, FLOAT)
    torch.library.opcheck(gqc.decompress_rows.default, (*compressed, 4, 7, BFLOAT))
    torch.library.opcheck(gqc.compress_rows.default, (torch.randn(2, 3, 20), 2, draw_seed(), 1, BFLOAT, 8))
