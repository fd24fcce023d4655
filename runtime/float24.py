"""Matrices of float24, three bytes an element, as the CPU's kernels store and read them.

A matrix of ``W`` columns is uint8 ``[N, 3 W]`` (:func:`gqc.runtime.reference.float24.pack`) whose rows start at cache
lines: one that is read at random then touches as few lines as its bytes fill.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import SymInt, Tensor

from gqc.runtime import kernels
from gqc.runtime.reference.float24 import pack, unpack

__all__ = ["as_rows", "bytes_of_row", "dtype_of", "empty", "is_float24", "pack", "shape_of", "unpack", "widened"]

LINE = 64
"""Bytes of a cache line."""


def bytes_of_row(width: int) -> int:
    """From the start of a row to that of the next one."""
    return -(-3 * width // LINE) * LINE


def is_float24(x: Tensor | None) -> bool:
    """Whether an operand of a float kernel holds float24; no other operand of one is uint8."""
    return x is not None and x.dtype is torch.uint8


def shape_of(x: Tensor) -> Sequence[int | SymInt]:
    """Rows and columns of a matrix, or the shape of another tensor."""
    return (*x.shape[:-1], x.shape[-1] // 3) if is_float24(x) else x.shape


def dtype_of(x: Tensor) -> torch.dtype:
    """What an operand's values are as floats."""
    return torch.float32 if is_float24(x) else x.dtype


def empty(on: Tensor, shape: Sequence[int]) -> Tensor:
    """Room for a matrix of this shape, ``[N, W]``, on the CPU: uint8 ``[N, 3 W]``."""
    rows, width = shape
    return kernels.empty(on, (rows, bytes_of_row(width)), torch.uint8)[:, : 3 * width]


def as_rows(x: Tensor) -> Tensor:
    """A matrix whose rows start at cache lines: ``x`` itself where they do."""
    rows, width = shape_of(x)
    if x.stride() == (bytes_of_row(int(width)), 1) and x.data_ptr() % LINE == 0:
        return x
    out = empty(x, (int(rows), int(width)))
    return out.copy_(x)


def widened(x: Tensor) -> Tensor:
    """An operand for an op that does not read float24."""
    return unpack(x) if is_float24(x) else x
