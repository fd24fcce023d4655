"""CUDA's functions in the emulator against their definitions in the CUDA C++ Programming Guide and the math API."""

from __future__ import annotations

import functools
import math
import operator

import torch

from tests.emu import emulator
from tests.emu.small_kernels import run

MOST = 2**31 - 1


def signed(x: int, bits: int = 32) -> int:
    """The low bits as a signed integer."""
    return (x + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def test_shuffles_stay_in_their_groups(target: emulator.Emulator) -> None:
    out = torch.empty(7 * 32)
    run(target, "shuffles", 1, 32, out)
    lanes = range(32)
    assert out.view(7, 32).int().tolist() == [
        [i // 8 * 8 + i * 3 % 8 for i in lanes],
        [i - 3 if i % 8 >= 3 else i for i in lanes],
        [i + 3 if i % 8 < 5 else i for i in lanes],
        [i ^ 5 for i in lanes],
        [i ^ 16 for i in lanes],
        [5] * 32,
        [1] * 32,
    ]


def test_votes_count_the_lanes_of_the_mask(target: emulator.Emulator) -> None:
    vote, out = torch.zeros(32, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
    vote[torch.tensor([0, 3, 4, 31])] = 7
    for mask, want in (
        (0xFFFFFFFF, [signed(1 << 31 | 0b11001), 1, 0]),
        (0b111, [1, 1, 0]),
        (0b11001, [0b11001, 1, 1]),
    ):
        run(target, "votes", 1, 32, vote, mask, out)
        assert out.tolist() == want


def test_functions_of_bits(target: emulator.Emulator) -> None:
    x, y, z = (torch.randint(-(2**31), 2**31, (32,)).int() for _ in range(3))
    x[:3] = torch.tensor([0, 1, -(2**31)])
    out = torch.empty(8 * 32, dtype=torch.int32)
    run(target, "bits", 1, 32, x, y, z, out)
    rows = [tuple(map(int, row)) for row in zip(x, y, z, strict=True)]
    bits = [tuple(v % 2**32 for v in row) for row in rows]

    def byte(a: int, b: int, selector: int) -> int:
        chosen = (b << 32 | a) >> 8 * (selector & 7) & 255
        return chosen if selector < 8 else 255 * (chosen >> 7)

    dot = [c + sum(signed(a >> s, 8) * signed(b >> s, 8) for s in (0, 8, 16, 24)) for a, b, c in rows]
    permuted = [sum(byte(a, b, c >> 4 * i & 15) << 8 * i for i in range(4)) for a, b, c in bits]
    assert out.view(8, 32).tolist() == [
        [signed(v) for v in dot],
        [signed(v) for v in permuted],
        [signed(a * b >> 32) for a, b, _ in bits],
        [a.bit_count() for a, _, _ in bits],
        [(a & -a).bit_length() for a, _, _ in bits],
        [32 - a.bit_length() for a, _, _ in bits],
        [signed(int(f"{a:032b}"[::-1], 2)) for a, _, _ in bits],
        [signed((b << 32 | a) >> (c & 31)) for a, b, c in bits],
    ]


def test_conversions_round_clamp_and_turn_nan_to_zero(target: emulator.Emulator) -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.7, 2.7, 3e9, -3e9, math.inf, -math.inf, math.nan] + [7.0] * 20)
    out = torch.empty(4 * 32, dtype=torch.int32)
    run(target, "conversions", 1, 32, x, out)
    ends = [MOST, -MOST - 1, MOST, -MOST - 1, 0] + [7] * 20
    assert out.view(4, 32).tolist() == [
        [0, 2, 2, 0, -2, -3, 3, *ends],
        [0, 1, 2, -1, -2, -3, 2, *ends],
        [1, 2, 3, 0, -1, -2, 3, *ends],
        [0, 1, 2, 0, -1, -2, 2, *ends],
    ]


def test_a_sum_is_rounded_down(target: emulator.Emulator) -> None:
    """To the largest float32 that is not above it; where the last bit is worth 1, that is its floor."""
    x = torch.tensor([0.25, 0.75, 1.0, -0.25, -0.75, -1.0, 126.999, -126.001] * 4)
    y = torch.full((32,), 3.0 * 2**22)
    out = torch.empty(32)
    run(target, "rounded_down", 1, 32, x, y, out)
    assert torch.equal(out - y, x.floor())


def test_halves_are_those_of_torch(target: emulator.Emulator) -> None:
    """All of them, the middles between neighbours and what is beside those, and numbers too large or no numbers."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16)[::3].view(torch.float16).float()
    middles = (every + (every.half().view(torch.int16) ^ 1).view(torch.float16).float()) / 2
    beside = [torch.nextafter(middles, torch.full_like(middles, side)) for side in (-math.inf, math.inf)]
    x = torch.cat([every, middles, *beside, torch.tensor([65519.0, 65520.0, -65520.0, 1e30, 1e-30, -(2.0**-25)])])
    out, back = torch.empty(len(x), dtype=torch.float16), torch.empty(len(x))
    run(target, "halves", 4, 32, x, len(x), out, back)
    torch.testing.assert_close(out, x.half(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(back, x.half().float(), rtol=0, atol=0, equal_nan=True)


def test_atomics_of_many_blocks(target: emulator.Emulator) -> None:
    x = torch.randint(1, 1000, (256,), dtype=torch.int32)
    out = torch.tensor([0, 0, 5000, 0, 0, 0], dtype=torch.int32)
    run(target, "atomics", 4, 64, x, out)
    values = x.tolist()
    total, either, odd = sum(values), functools.reduce(operator.or_, values), functools.reduce(operator.xor, values)
    assert out.tolist() == [total, max(values), min(values), either, odd, total]
