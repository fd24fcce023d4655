"""What is quantized again and again takes one pass over memory, and is what two passes give."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch
from torch import Tensor

from gqc.runtime import last_absmax, ops
from gqc.runtime.last_absmax import FEWEST_ELEMENTS, Guess, LastAbsmax
from gqc.runtime.reference import quantize as reference
from tests.runtime.test_quantize import draw_seed

gqc = torch.ops.gqc
GAINING_ISAS = ("avxvnni", "amx")
SHAPE = (FEWEST_ELEMENTS // 64 + 3, 65)
PROGRAM = "v0 = mul(x0, x1); return int8(v0, 5, 8, 1)"


@pytest.fixture(autouse=True)
def guesses(monkeypatch: pytest.MonkeyPatch) -> LastAbsmax:
    """New guesses, which the ops then use."""
    new = LastAbsmax()
    for op in (ops.quantize, ops.pointwise):
        monkeypatch.setattr(op, "LAST_ABSMAX", new)
    return new


def known(guesses: LastAbsmax) -> list[float]:
    """What the guesses would be now, NaN for none."""
    return [ctypes.c_float.from_address(guess.ask()).value for guess in guesses._guesses.values()]


def assert_quantized(x: Tensor, factor: Tensor) -> None:
    """What the ops give is what the reference gives, by random bits and to nearest."""
    seed = draw_seed()
    for stochastic in (True, False):
        drawn = (seed, 5, 8, True) if stochastic else (None, 0, 8, False)
        for got, want in zip(gqc.quantize(x, None, *drawn), reference.quantize(x, None, *drawn), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    want = reference.quantize(x.float() * factor, None, seed, 5, 8, True)
    for got, values in zip(gqc.pointwise([x, factor], seed, PROGRAM), want, strict=True):
        torch.testing.assert_close(got, values, rtol=0, atol=0, equal_nan=True)


WRITES = {
    "nothing": lambda x: None,
    "larger": lambda x: x.view(-1)[1234].fill_(100),
    "smaller": lambda x: x.mul_(0.5),
    "zero": lambda x: x.zero_(),
    "NaN": lambda x: x.view(-1)[77].fill_(math.nan),
    "infinite": lambda x: x.view(-1)[77].fill_(math.inf),
    "the last one larger": lambda x: x.view(-1)[-1].fill_(-1000),
    "others of one size": lambda x: x.copy_(x.flip(0)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_was_written_to_between_calls(isa: str, guesses: LastAbsmax, dtype: torch.dtype, write: str) -> None:
    x, factor = torch.randn(SHAPE).to(dtype), torch.rand(SHAPE[0], 1)
    for _ in range(3):
        assert_quantized(x, factor)
    # quantize and the program found the same twice; quantize was called for both roundings.
    largest = float(x.abs().max()), float((x.float() * factor).abs().max())
    assert sorted(known(guesses)) == sorted(largest)
    WRITES[write](x.data)  # the version of x stays
    for _ in range(3):
        assert_quantized(x, factor)


def test_a_guess_needs_the_same_twice(guesses: LastAbsmax) -> None:
    x = torch.randn(SHAPE)
    for calls in (1, 2, 3):
        gqc.quantize(x, None, None, 0, 8, False)
        (guess,) = known(guesses)
        assert math.isnan(guess) == (calls < 2)
    x[0, 0] = 9
    gqc.quantize(x, None, None, 0, 8, False)
    assert math.isnan(known(guesses)[0])


def test_small_tensors_and_known_magnitudes_take_none(guesses: LastAbsmax) -> None:
    gqc.quantize(torch.randn(100), None, None, 0, 8, False)
    x = torch.randn(SHAPE)
    gqc.quantize(x, x.abs().max(), None, 0, 8, False)
    gqc.pointwise([x], None, "v0 = neg(x0); return float32(v0), int8(v0, 5, 8, 0)")
    assert known(guesses) == []


def test_only_the_last_tensors_are_known() -> None:
    guesses = LastAbsmax()
    first = guesses.of("first")
    assert guesses.of("first") is first
    for key in range(1000):
        guesses.of(key)
    assert len(guesses._guesses) == last_absmax._MOST
    assert guesses.of("first") is not first


def test_what_is_not_a_number_is_no_guess() -> None:
    guess = Guess()
    for found in (math.nan, math.nan, 2.0, 2.0):
        assert math.isnan(ctypes.c_float.from_address(guess.ask()).value)
        ctypes.c_float.from_address(guess.address).value = found
        guess.learn()
    assert ctypes.c_float.from_address(guess.ask()).value == 2.0
