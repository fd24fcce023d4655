"""The rows of a compressed matrix shared out to warps: what csrc/cuda/rows.cuh is launched with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch

THREADS = 128
WARP = 32
_WARPS = THREADS // WARP  # in a block, each with a share
_JOIN_THREADS = 256
_ROW_COST = 4  # as in csrc/cuda/rows.cuh, in entries
_LEAST_COST = 256  # of a share: finding its first row takes a warp about as long as some dozen entries
_MOST_COST = 131_072  # of a share, whose INT8 products are added up in int32
_SHARES = 128  # on a multiprocessor, several times as many as it runs at once, so that all end at about the same time
_MOST_ENTRIES = 2**31 - 1024  # positions, nodes and edge ids are read as 32 bits

JOIN_SUMS = {
    True: Kernel("join_sums_int32", "piiiiippipppiipp"),
    False: Kernel("join_sums_f32", "piiiiippipppiipp"),
}
"""Adds up the pieces of cut rows, by whether these are int32: takes two scales, the width, pieces, rows, an output."""


class Output(NamedTuple):
    """Where the sums of rows go: the last arguments of kernels that write them.

    Attributes:
        out: address of the rows.
        absmax: address of a number that is raised to the largest magnitude in them, or ``None``.
        factors: address of one float32 a row by which it is multiplied, or ``None``.
        divide: whether it is divided instead.
        dtype: of the elements, a number of :data:`gqc.runtime.kernels.DTYPES`.
    """

    out: Argument
    absmax: Argument = None
    factors: Argument = None
    divide: bool = False
    dtype: int = 0

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """As kernels take them."""
        return self.factors, self.divide, self.dtype, self.out, self.absmax


class Matrix(NamedTuple):
    """A compressed matrix; the first six arguments of every kernel that works on shares of its rows are its own.

    Attributes:
        indptr: address of ``[rows + 1]`` positions.
        is_int64: whether positions and indices are int64, else int32.
        rows: their number.
        entries: their number.
        cost: entries of a share, of which a row's end takes 4.
        shares: how many there are.
    """

    indptr: Argument
    is_int64: bool
    rows: int
    entries: int
    cost: int
    shares: int

    @property
    def blocks(self) -> int:
        """Blocks of a kernel that works on all shares."""
        return blocks_for(self.shares, _WARPS)


class Pieces(NamedTuple):
    """Scratch memory for rows that shares cut: values ``[2 * shares, width]`` and, a share, the row that it cuts."""

    values: Tensor
    cut_rows: Tensor


def matrix(target: Target, indptr: Argument, is_int64: bool, rows: int, entries: int, tiles: int) -> Matrix:
    """Share out the rows of a matrix, to a kernel that runs once for each of ``tiles`` parts of the features.

    Raises:
        KernelError: for a matrix of 2^31 rows or entries.
    """
    if max(rows, entries) > _MOST_ENTRIES:
        raise KernelError(f"gqc's CUDA kernels take graphs of up to {_MOST_ENTRIES} nodes and edges")
    total = entries + _ROW_COST * rows
    shares = min(blocks_for(total, _LEAST_COST), max(_SHARES // tiles, 8) * target.multiprocessors)
    cost = blocks_for(total, max(shares, blocks_for(total, _MOST_COST)))
    return Matrix(indptr, is_int64, rows, entries, cost, blocks_for(total, cost))


def pieces(target: Target, matrix: Matrix, width: int, dtype: torch.dtype) -> Pieces:
    """Scratch memory for the rows that shares of a matrix cut; a row is ``width`` values of ``dtype``."""
    return Pieces(
        target.empty((2 * matrix.shares, width), dtype),
        target.empty((matrix.shares,), torch.int32),
    )


def join(target: Target, kernel: Kernel, matrix: Matrix, width: int, *arguments: Argument) -> None:
    """Put together the rows that shares have cut."""
    if matrix.shares > 1:  # one share holds all rows whole
        grid = (blocks_for(matrix.shares, WARP), blocks_for(width, WARP))
        launch(target, kernel, grid, _JOIN_THREADS, *matrix, *arguments)


def power_of_two(at_least: int) -> int:
    """The lanes of a warp, a power of two, that ``at_least`` of them need."""
    return min(1 << (at_least - 1).bit_length(), WARP)
