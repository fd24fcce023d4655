"""What the kernel of a product gets to run a pointwise program on the tiles of its result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.library import refuse_gradient
from gqc.runtime.pointwise.code import addresses, code_for, new_outputs


class TileProgram(NamedTuple):
    """A program on products that only it reads.

    Attributes:
        outputs: its results, as ``torch.ops.gqc.pointwise`` gives them.
        arguments: the kernel's last four, see ``Program`` in csrc/cpu/pointwise/program.h.
        kept: what the arguments point to.
    """

    outputs: list[Tensor]
    arguments: tuple[object, ...]
    kept: list[Tensor]


def tile_program(
    name: str,
    on: Tensor,
    product: Sequence[int],
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None,
    products: int = 1,
) -> TileProgram | None:
    """A program whose first inputs are products of the shape ``product``, reshaped to ``size``, and outputs for it.

    Returns:
        The program; ``None`` where there is nothing to compute, or a row of the product is no whole number of rows of
        the iteration.

    Raises:
        KernelError: if an input does not fit, or there is no seed for a program that draws random numbers.
    """
    refuse_gradient(name, *inputs)
    size = tuple(product) if size is None else _whole(name, prod(product), size)
    code = code_for(program, tuple((x.dtype, tuple(x.shape)) for x in inputs), size, products)
    if code.draws and (seed is None or seed.numel() != 2):
        raise KernelError(f"gqc.{name}: the program draws random numbers and needs a seed, [number drawn, step]")
    if code.empty or prod(product[1:]) % prod(size[1:]):
        return None
    kept = [x.contiguous() for x in inputs]
    outputs = new_outputs(on, code)
    seed_at = None if seed is None else pointer(seed, torch.int64)
    return TileProgram(outputs, (code.address, addresses(kept), addresses(outputs), seed_at), kept)


def _whole(name: str, elements: int, size: Sequence[int]) -> tuple[int, ...]:
    """``size`` with the number that -1 stands for."""
    known = prod(length for length in size if length != -1)
    whole = tuple(elements // known if length == -1 and known else length for length in size)
    if prod(whole) != elements or size.count(-1) > 1:
        raise KernelError(f"gqc.{name}: a product of {elements} elements has no shape {list(size)}")
    return whole
