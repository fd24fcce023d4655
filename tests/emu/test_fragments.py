"""The emulated matrix products of a warp against the fragments that the PTX ISA documents, element by element.

PTX ISA, "Matrix Fragments for mma.m8n8k16", "mma.m16n8k32" and "mma.m16n8k64": with groupID = laneid >> 2 and
threadID_in_group = laneid % 4, they give the row and column of each element i of a lane's fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.emu import emulator, small_kernels

Place = Callable[[int, int, int], tuple[int, int]]
"""Row and column of element i, from groupID, threadID_in_group and i."""


class Shape(NamedTuple):
    """A matrix product: its sizes, the bits of an element of a and b, and where the elements of a lane lie."""

    m: int
    n: int
    k: int
    bits: int
    place_a: Place
    place_b: Place
    place_d: Place


SHAPES = {
    "m8n8k16_s8": Shape(
        *(8, 8, 16, 8),
        place_a=lambda group, thread, i: (group, thread * 4 + i),
        place_b=lambda group, thread, i: (thread * 4 + i, group),
        place_d=lambda group, thread, i: (group, thread * 2 + i),
    ),
    "m16n8k32_s8": Shape(
        *(16, 8, 32, 8),
        place_a=lambda group, thread, i: (
            group if i < 4 or 8 <= i < 12 else group + 8,
            thread * 4 + (i & 3) + (16 if i >= 8 else 0),
        ),
        place_b=lambda group, thread, i: (thread * 4 + (i & 3) + (16 if i >= 4 else 0), group),
        place_d=lambda group, thread, i: (group if i < 2 else group + 8, thread * 2 + (i & 1)),
    ),
    "m16n8k64_s4": Shape(
        *(16, 8, 64, 4),
        place_a=lambda group, thread, i: (
            group if i < 8 or 16 <= i < 24 else group + 8,
            thread * 8 + (i & 7) + (32 if i >= 16 else 0),
        ),
        place_b=lambda group, thread, i: (thread * 8 + (i & 7) + (32 if i >= 8 else 0), group),
        place_d=lambda group, thread, i: (group if i < 2 else group + 8, thread * 2 + (i & 1)),
    ),
}


def places(place: Place, elements: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of all lanes' elements in order."""
    for lane in range(32):
        for i in range(elements // 32):
            yield place(lane >> 2, lane % 4, i)


def packed(matrix: Tensor, place: Place, bits: int) -> Tensor:
    """The lanes' words; of a word, the element with the lower number takes the lower bits."""
    elements = [int(matrix[at]) & (1 << bits) - 1 for at in places(place, matrix.numel())]
    each = 32 // bits
    words = [sum(x << bits * j for j, x in enumerate(elements[i : i + each])) for i in range(0, len(elements), each)]
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize("name", SHAPES)
def test_products_have_the_documented_fragments(name: str) -> None:
    m, n, k, bits, place_a, place_b, place_d = SHAPES[name]
    least = -(2 ** (bits - 1))
    a, b = torch.randint(least, -least, (m, k)), torch.randint(least, -least, (k, n))
    d = torch.randint(-1000, 1000, (m, n))
    words = torch.tensor([int(d[at]) for at in places(place_d, d.numel())], dtype=torch.int32)
    target = emulator.Emulator(small_kernels.library())
    small_kernels.run(target, name, 1, 32, packed(a, place_a, bits), packed(b, place_b, bits), words)
    got = torch.full((m, n), 2**30)
    for at, value in zip(places(place_d, d.numel()), words, strict=True):
        got[at] = value
    assert torch.equal(got, a @ b + d)
