"""Launches the kernels of csrc/cuda/quantize.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.cuda.pack_bits import TILE
from gqc.runtime.cuda.target import Argument, Kernel, Target, launch, of_each_type, strided_blocks

_THREADS = 256
_READ, _ROUNDED = 8, 16  # elements of a thread; a block of random bytes rounds 16

_ABSMAX = of_each_type("absmax", "pip")
_QUANTIZE = of_each_type("quantize", "pipfpipp")
_QUANTIZE_INT4 = of_each_type("quantize_int4", "pipfpipp")
_QUANTIZE_INT4_ROWS = of_each_type("quantize_int4_rows", "piipfpipp")
_UNPACK_INT4 = Kernel("unpack_int4", "pip")
_UNPACK_INT4_ROWS = Kernel("unpack_int4_rows", "piip")
_DEQUANTIZE = of_each_type("dequantize", "ppip")


def absmax(target: Target, x: Argument, dtype: int, n: int, out: Argument) -> None:
    """Raise ``out`` to the largest magnitude of ``n`` elements."""
    if n:
        launch(target, _ABSMAX[dtype], _grid(target, n, _READ * _THREADS), _THREADS, x, n, out)


def quantize(
    target: Target,
    x: Argument,
    dtype: int,
    n: int,
    largest: Argument,
    seed: Argument,
    node: int,
    bits: int,
    stochastic: bool,
    q: Argument,
    scale: Argument,
) -> None:
    """Round ``n`` elements to int8 ``q`` and write their scale; without ``largest`` it is looked for first."""
    if largest is None:
        found = largest_of(target, x, dtype, n)  # held until the kernel that reads it is launched
        largest = found.data_ptr()
    random = (seed if stochastic else None, node)
    grid = _grid(target, n, _ROUNDED * _THREADS)
    launch(target, _QUANTIZE[dtype], grid, _THREADS, x, n, largest, limit(bits), *random, q, scale)


def quantize_int4(
    target: Target,
    x: Argument,
    dtype: int,
    rows: int,
    width: int,
    largest: Argument,
    seed: Argument,
    node: int,
    bits: int,
    stochastic: bool,
    packed: Argument,
    scale: Argument,
) -> None:
    """Round a matrix to at most 4 bits, packed row by row."""
    n = rows * width
    if largest is None:
        found = largest_of(target, x, dtype, n)  # held until the kernel that reads it is launched
        largest = found.data_ptr()
    random = (seed if stochastic else None, node)
    if width % 2:
        kernel, sizes, grid = _QUANTIZE_INT4_ROWS[dtype], (rows, width), _grid_of_tiles(target, rows, width)
    else:
        kernel, sizes, grid = _QUANTIZE_INT4[dtype], (n,), _grid(target, n, _ROUNDED * _THREADS)
    launch(target, kernel, grid, _THREADS, x, *sizes, largest, limit(bits), *random, packed, scale)


def unpack_int4(target: Target, packed: Argument, rows: int, width: int, q: Argument) -> None:
    """Write packed rows as int8."""
    if width % 2:
        launch(target, _UNPACK_INT4_ROWS, _grid_of_tiles(target, rows, width), _THREADS, packed, rows, width, q)
    else:
        launch(target, _UNPACK_INT4, _grid(target, rows * width, 16 * _THREADS), _THREADS, packed, rows * width, q)


def dequantize(target: Target, q: Argument, scale: Argument, n: int, dtype: int, out: Argument) -> None:
    """Write ``q * scale``."""
    if n:
        grid = _grid(target, n, (8 if dtype else 4) * _THREADS)
        launch(target, _DEQUANTIZE[dtype], grid, _THREADS, q, scale, n, out)


def largest_of(target: Target, x: Argument, dtype: int, n: int) -> Tensor:
    """The largest magnitude of ``n`` elements, for a kernel that is launched next."""
    out = target.empty((), torch.float32).zero_()
    absmax(target, x, dtype, n, out.data_ptr())
    return out


def limit(bits: int) -> float:
    """The largest value of so many bits."""
    return float(2 ** (bits - 1) - 1)


def _grid(target: Target, work: int, per_block: int) -> int:
    return max(1, strided_blocks(target, work, per_block))  # one writes the scale, also of no elements


def _grid_of_tiles(target: Target, rows: int, width: int) -> int:
    return _grid(target, rows * ((width + 1) // 2), TILE)


LAUNCHERS = (absmax, quantize, quantize_int4, unpack_int4, dequantize)
