"""The quantizer against its reference, bit for bit, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import quantize as reference
from gqc.runtime.reference.philox import philox4x32, random_bits, random_bytes
from tests.runtime.backends import BACKENDS, on_backend

gqc = torch.ops.gqc
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAN, INF = math.nan, math.inf


def draw_seed() -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,))


def assert_same(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    assert got[0].dtype == torch.int8
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1].view(torch.int32), want[1].view(torch.int32)) or (got[1].isnan() and want[1].isnan())


@pytest.mark.parametrize(
    ("word", "rounds", "answer"),
    [
        (0, 7, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        (0, 10, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (0xFFFFFFFF, 7, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
        (0xFFFFFFFF, 10, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(word: int, rounds: int, answer: list[int]) -> None:
    counter = [torch.tensor(word)] * 4
    assert [int(w) for w in philox4x32(counter, (word, word), rounds)] == answer


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_bytes_are_those_of_the_16_bit_numbers(count: int) -> None:
    seed = draw_seed()
    pairs = random_bytes(2 * count, seed, 3).view(count, 2)
    assert torch.equal(pairs[:, 0] + 256 * pairs[:, 1], random_bits(count, seed, 3))
    assert torch.equal(random_bytes(count, seed, 3), pairs.flatten()[:count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 127, 128, 129, 1000, 70_001])
def test_equals_reference_at_sizes_around_blocks(backend: str, threads: int, dtype: torch.dtype, count: int) -> None:
    x, seed = torch.randn(count, dtype=dtype), draw_seed()
    for stochastic in (True, False):
        want = reference.quantize(x, None, seed, 3, 8, stochastic)
        assert_same(gqc.quantize(x, None, seed, 3, 8, stochastic), want)
        assert_same(gqc.quantize(x, gqc.absmax(x), seed, 3, 8, stochastic), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 5])
def test_a_tensor_may_start_anywhere(backend: str, dtype: torch.dtype, offset: int) -> None:
    x, seed = torch.randn(3000, dtype=dtype)[offset:], draw_seed()
    q, scale = gqc.quantize(x, None, seed, 3, 8, True)
    assert_same((q, scale), reference.quantize(x, None, seed, 3, 8, True))
    assert torch.equal(gqc.dequantize(q[offset:], scale, dtype), reference.dequantize(q[offset:], scale, dtype))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 9), max_size=4),
    bits=st.integers(2, 8),
    stochastic=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    node=st.integers(0, 2**32 - 1),
    exponent=st.integers(-30, 30),
    backend=st.sampled_from(BACKENDS),
)
def test_equals_reference(
    shape: list[int], bits: int, stochastic: bool, dtype: torch.dtype, node: int, exponent: int, backend: str
) -> None:
    x, seed = (torch.randn(shape) * 2.0**exponent).to(dtype), draw_seed()
    with on_backend(backend):
        q, scale = gqc.quantize(x, None, seed, node, bits, stochastic)
        assert_same((q, scale), reference.quantize(x, None, seed, node, bits, stochastic))
        for out in DTYPES:
            want = reference.dequantize(q, scale, out)
            torch.testing.assert_close(gqc.dequantize(q, scale, out), want, rtol=0, atol=0, equal_nan=True)
    assert q.numel() == 0 or q.abs().max() <= 2 ** (bits - 1) - 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0],
        [3.0, 3.0],
        [-5.0],
        [NAN, 1.0],
        [INF, 1.0],
        [-INF, NAN],
        [1e-45, 0.0, -1e-45],
        [1e-38, 1e-39, -2e-38],
        [4e-37, 1e-38],
        [3e38, -3e38, 1.0],
        [1.0, 1e-30],
        [127.0, 0.5, -0.5, 1.5, -1.5, 126.5, -126.5],
    ],
    ids=str,
)
def test_equals_reference_on_hard_values(backend: str, dtype: torch.dtype, values: list[float]) -> None:
    x, seed = torch.tensor(values * 30, dtype=dtype), draw_seed()
    largest = gqc.absmax(x)
    assert torch.allclose(largest, reference.absmax(x), rtol=0, equal_nan=True)
    for stochastic in (True, False):
        assert_same(gqc.quantize(x, None, seed, 1, 8, stochastic), reference.quantize(x, None, seed, 1, 8, stochastic))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_width_equals_reference(backend: str, threads: int, bits: int, dtype: torch.dtype) -> None:
    limit, seed = 2 ** (bits - 1) - 1, draw_seed()
    levels = torch.arange(-limit, limit + 1, dtype=dtype)
    for x in (
        torch.randn(70_003, dtype=dtype),
        levels,
        torch.zeros(9, dtype=dtype),
        torch.full((9,), NAN, dtype=dtype),
    ):
        for stochastic in (True, False):
            q, scale = gqc.quantize(x, None, seed, 2, bits, stochastic)
            assert_same((q, scale), reference.quantize(x, None, seed, 2, bits, stochastic))
    q, scale = gqc.quantize(levels, None, seed, 2, bits, True)
    assert torch.equal(gqc.dequantize(q, scale, dtype), levels)  # the levels themselves are not rounded


@pytest.mark.parametrize("place", [0, 5, 1000, 1023])
@pytest.mark.parametrize(("value", "absmax"), [(NAN, NAN), (INF, INF), (-INF, INF)])
def test_what_is_not_finite_is_never_hidden(backend: str, value: float, absmax: float, place: int) -> None:
    x = torch.randn(1024)
    x[place] = value
    q, scale = gqc.quantize(x, None, draw_seed(), 0, 8, True)
    assert torch.allclose(gqc.absmax(x), torch.tensor(absmax), equal_nan=True)
    assert q.count_nonzero() == 0
    assert gqc.dequantize(q, scale, torch.float32).isnan().all()


def test_zero_is_rounded_to_zero(backend: str) -> None:
    x = torch.cat([torch.zeros(5000), torch.ones(1)])
    q, _ = gqc.quantize(x, None, draw_seed(), 0, 8, True)
    assert q[:-1].count_nonzero() == 0
    assert q[-1] == 127


def test_every_float16_is_read_and_written_as_torch_does(backend: str) -> None:
    """All of them: read by quantize and dropout, written by dequantize and dropout from what is read."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    largest, finite = torch.tensor(65504.0), x[x.isfinite()]
    assert_same(
        gqc.quantize(finite, None, None, 0, 8, False), reference.quantize(finite.float(), largest, None, 0, 8, False)
    )
    kept, _ = gqc.dropout(x, 0.0, draw_seed(), 0)
    torch.testing.assert_close(kept, x, rtol=0, atol=0, equal_nan=True)
    steps = torch.cat([torch.rand(20) * 2.0**e for e in range(-30, 12)])
    q = torch.arange(-127, 128, dtype=torch.int8)
    for step in steps:
        want = (q.float() * step).half()
        assert torch.equal(gqc.dequantize(q, step, torch.float16), want)


def test_stochastic_rounding_is_unbiased(backend: str) -> None:
    """The mean of n rounded copies lies within 5 standard errors, of at most half a step / sqrt(n)."""
    points, n = torch.linspace(-1, 1, 33), 40_000
    q, scale = gqc.quantize(points.expand(n, 33), None, draw_seed(), 0, 8, True)
    error = q.float().mean(0) * scale - points
    assert error.abs().max() < 5 * 0.5 * scale / n**0.5


@pytest.mark.parametrize("fraction", [1e-3, 1 / 512, 0.1, 1 / 3, 0.499, 0.7, 0.9, 1 - 1e-3])
def test_the_mean_of_any_fraction_is_off_by_at_most_half_a_threshold(backend: str, fraction: float) -> None:
    """Thresholds are 1/256 apart; what the mean is off by more is at most 5 standard errors."""
    n, largest, half = 40_000, torch.tensor(127.0), 1 / 512  # a scale of 1
    q, _ = gqc.quantize(torch.full((n,), fraction), largest, draw_seed(), 0, 8, True)
    variance = (fraction + half) * (1 - fraction + half)
    assert abs(q.float().mean() - fraction) < half + 5 * (variance / n) ** 0.5


def test_every_random_byte_is_a_threshold_of_its_own(backend: str) -> None:
    """Looks for the byte of each element by halves: an element is rounded up from ``1 - (byte + 1/2) / 256`` on."""
    n, largest, seed = 2**14, torch.tensor(127.0), draw_seed()

    def rounded_up(byte: Tensor, below: float = 0.0) -> Tensor:
        fraction = 1 - (byte + 0.5) / 256 - below
        return gqc.quantize(fraction, largest, seed, 0, 8, True)[0] == 1

    byte = torch.zeros(n)
    for bit in (128, 64, 32, 16, 8, 4, 2, 1):
        byte += bit * rounded_up(byte + bit)
    assert rounded_up(byte).all()
    assert not rounded_up(byte, below=2**-12).any()
    found = torch.bincount(byte.int(), minlength=256)
    assert found.count_nonzero() == 256
    chi_square = ((found - n / 256) ** 2 / (n / 256)).sum()
    assert (chi_square - 255).abs() < 6 * (2 * 255) ** 0.5


def test_rounding_errors_of_neighbours_are_independent(backend: str) -> None:
    x = torch.full((200_000,), 0.5 / 127)
    x[0] = 1.0
    q, _ = gqc.quantize(x, None, draw_seed(), 0, 8, True)
    up = q[1:].float() - 0.5
    for distance in (1, 2, 7, 8, 16, 128):
        correlation = 4 * (up[distance:] * up[:-distance]).mean()
        assert correlation.abs() < 5 / len(up) ** 0.5


def test_random_bits_depend_on_seed_step_and_node_only(backend: str) -> None:
    x = torch.randn(4096)
    results = {
        name: gqc.quantize(x, None, torch.tensor(seed), node, 8, True)[0]
        for name, seed, node in [
            ("base", [1, 2], 3),
            ("seed", [2, 2], 3),
            ("high half of seed", [1 + 2**32, 2], 3),
            ("step", [1, 3], 3),
            ("node", [1, 2], 4),
        ]
    }
    base = results.pop("base")
    assert torch.equal(base, gqc.quantize(x, None, torch.tensor([1, 2]), 3, 8, True)[0])
    for name, q in results.items():
        assert not torch.equal(q, base), name


def test_views_are_read_in_row_major_order(backend: str) -> None:
    x, seed = torch.randn(6, 50), draw_seed()
    for view in (x.t(), x[:, ::3], x[0].expand(7, 50), x[1:, 5:]):
        assert_same(gqc.quantize(view, None, seed, 0, 8, True), gqc.quantize(view.clone(), None, seed, 0, 8, True))
        assert gqc.absmax(view) == view.abs().max()


def test_refusals_say_what_is_wrong() -> None:
    x, seed = torch.randn(4), draw_seed()
    with pytest.raises(KernelError, match=r"float32, bfloat16 and float16 and got torch\.float64"):
        gqc.quantize(x.double(), None, seed, 0, 8, True)
    with pytest.raises(KernelError, match=r"bits=9 is outside 2 \.\. 8"):
        gqc.quantize(x, None, seed, 0, 9, True)
    with pytest.raises(KernelError, match="stochastic rounding needs a seed"):
        gqc.quantize(x, None, None, 0, 8, True)
    assert_same(gqc.quantize(x, None, None, 0, 8, False), gqc.quantize(x, None, seed, 0, 8, False))
    with pytest.raises(KernelError, match="seed has 3 elements"):
        gqc.quantize(x, None, torch.zeros(3, dtype=torch.int64), 0, 8, True)
    with pytest.raises(KernelError, match=r"quantize has no gradient.*detach"):
        gqc.quantize(x.requires_grad_(), None, seed, 0, 8, True)
    with torch.no_grad():
        assert not gqc.quantize(x, None, seed, 0, 8, True)[1].requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(dtype: torch.dtype) -> None:
    x, seed = torch.randn(5, 7, dtype=dtype), draw_seed()
    q, scale = gqc.quantize(x, None, seed, 0, 8, True)
    torch.library.opcheck(gqc.absmax.default, (x,))
    torch.library.opcheck(gqc.quantize.default, (x, None, seed, 0, 8, True))
    torch.library.opcheck(gqc.quantize.default, (x.t(), gqc.absmax(x), seed, 2**31, 4, False))
    torch.library.opcheck(gqc.dequantize.default, (q, scale, dtype))
