"""Activations that are saved for the backward in few bits (TinyKG, RecSys'22, equations 3 and 4).

Row by row and asymmetric: with ``B = 2**bits - 1``, the least element ``Z`` and the range ``R`` of a row, an element
is kept as ``q = floor((x - Z) * (B / R) + r)``, ``r`` random, and read as ``q * (R / B) + Z``. The expectation of that
is ``x``, and the variance of a row of ``d`` elements is at most ``d R^2 / (4 B^2)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.pack_bits import bytes_of_row, check_bits, check_packed_rows
from gqc.runtime.ops.quantize import check_float

STATS = (torch.float32, torch.bfloat16)
"""Dtypes in which the least element and the range of a row may be kept."""


def _check(x: Tensor, bits: int, seed: Tensor | None, stats: torch.dtype) -> None:
    refuse_gradient("compress_rows", x)
    check_float("compress_rows", x.dtype)
    check_bits("compress_rows", bits)
    if x.dim() != 2:
        raise KernelError(f"gqc.compress_rows takes rows [N, W] and got {list(x.shape)}: flatten what follows the rows")
    if seed is not None and seed.numel() != 2:
        raise KernelError(
            f"gqc.compress_rows: seed has {seed.numel()} elements; it holds the step's number and the step"
        )
    if stats not in STATS:
        raise KernelError(f"gqc.compress_rows keeps Z and R in float32 or bfloat16, not in {stats}")


def _compress_rows(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, bits, seed, stats)
    x = x.contiguous()
    rows, width = x.shape
    packed = kernels.empty(x, (rows, bytes_of_row(width, bits)), torch.uint8)
    if x.numel() == 0:
        return packed, x.new_zeros(rows, dtype=stats), x.new_zeros(rows, dtype=stats)
    zero, spread = (kernels.empty(x, (rows,), stats) for _ in range(2))
    kernels.run(
        x,
        "compress_rows",
        *(x.data_ptr(), dtype_code(x.dtype), rows, width, bits),
        *(None if seed is None else pointer(seed, torch.int64), node, dtype_code(stats)),
        *(packed.data_ptr(), zero.data_ptr(), spread.data_ptr()),
    )
    return packed, zero, spread


def _compress_rows_fake(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, bits, seed, stats)
    rows, width = x.shape
    packed = x.new_empty((rows, bytes_of_row(width, bits)), dtype=torch.uint8)
    return packed, x.new_empty((rows,), dtype=stats), x.new_empty((rows,), dtype=stats)


def _decompress_rows(packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype) -> Tensor:
    check_packed_rows("decompress_rows", packed, bits, width)
    check_float("decompress_rows", dtype)
    refuse_gradient("decompress_rows", zero, spread)
    rows = packed.shape[0]
    if zero.dtype not in STATS or spread.dtype is not zero.dtype or {zero.shape, spread.shape} != {(rows,)}:
        raise KernelError(
            f"gqc.decompress_rows: Z {zero.dtype} {list(zero.shape)} and R {spread.dtype} {list(spread.shape)} are not "
            f"those that gqc.compress_rows gives for {rows} rows"
        )
    packed = packed.contiguous()
    out = kernels.empty(packed, (rows, width), dtype)
    if out.numel():
        kernels.run(
            packed,
            "decompress_rows",
            *(packed.data_ptr(), pointer(zero, zero.dtype), pointer(spread, zero.dtype), dtype_code(zero.dtype)),
            *(rows, width, bits, dtype_code(dtype), out.data_ptr()),
        )
    return out


def _decompress_rows_fake(
    packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype
) -> Tensor:
    check_bits("decompress_rows", bits)
    return packed.new_empty((packed.shape[0], width), dtype=dtype)


define(
    "compress_rows(Tensor x, int bits, Tensor? seed, int node, ScalarType stats) "
    "-> (Tensor packed, Tensor zero, Tensor range)",
    kernel=_compress_rows,
    fake=_compress_rows_fake,
)
define(
    "decompress_rows(Tensor packed, Tensor zero, Tensor range, int bits, SymInt width, ScalarType dtype) -> Tensor",
    kernel=_decompress_rows,
    fake=_decompress_rows_fake,
)
