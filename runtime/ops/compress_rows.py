"""Activations that are saved for the backward in few bits (TinyKG, RecSys'22, equations 3 and 4).

Row by row, a row being the last axis, and asymmetric: with ``B = 2**bits - 1``, the least element ``Z`` and the range
``R`` of a row, an element is kept as ``q = floor((x - Z) * (B / R) + r)``, ``r`` random in ``[0, 1)``, and read as
``q * (R / B) + Z``. The expectation of that is ``x``, and the variance of a row of ``d`` elements is at most
``d R^2 / (4 B^2)``. With ``group`` so many elements of a row, not all of it, share ``Z`` and ``R`` (ActNN, ICML'21).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.pack_bits import bytes_of_row, check_bits, check_packed_rows
from gqc.runtime.ops.quantize import check_float

STATS = (torch.float32, torch.bfloat16)
"""Dtypes in which the least element and the range of a group may be kept."""

GROUP_MULTIPLE = 8
"""A group is a multiple of so many elements: in 1 bit, those of a byte."""


def groups_of_row(width: int | torch.SymInt, group: int) -> int | torch.SymInt:
    """Groups of a row of ``width`` elements; the last one may be shorter."""
    return -(-width // group) if group else 1


def _check_group(op: str, group: int) -> None:
    if group < 0 or group % GROUP_MULTIPLE:
        raise KernelError(
            f"gqc.{op}: group={group} is no multiple of {GROUP_MULTIPLE}, so its groups would share bytes: take "
            f"{max(1, -(-group // GROUP_MULTIPLE)) * GROUP_MULTIPLE}, or 0 for a whole row"
        )


def _check(x: Tensor, bits: int, seed: Tensor | None, stats: torch.dtype, group: int) -> None:
    refuse_gradient("compress_rows", x)
    check_float("compress_rows", x.dtype)
    check_bits("compress_rows", bits)
    _check_group("compress_rows", group)
    if x.dim() == 0:
        raise KernelError("gqc.compress_rows takes rows [*, W] and got a scalar: keep it as it is")
    if seed is not None and seed.numel() != 2:
        raise KernelError(
            f"gqc.compress_rows: seed has {seed.numel()} elements; it holds the step's number and the step"
        )
    if stats not in STATS:
        raise KernelError(f"gqc.compress_rows keeps Z and R in float32 or bfloat16, not in {stats}")


def _runs(shape: torch.Size, group: int) -> tuple[int, int, int]:
    """Rows, width and group as kernels take them, which know no group of 0: groups that fill a row are rows."""
    rows, width = math.prod(shape[:-1]), shape[-1]
    if group == 0 or group >= width:
        return rows, width, width
    if width % group == 0:
        return rows * (width // group), group, group
    return rows, width, group


def _compress_rows(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype, group: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, bits, seed, stats, group)
    x = x.contiguous()
    *rows, width = x.shape
    of_groups = (*rows, groups_of_row(width, group))
    packed = kernels.empty(x, (*rows, bytes_of_row(width, bits)), torch.uint8)
    if x.numel() == 0:
        return packed, x.new_zeros(of_groups, dtype=stats), x.new_zeros(of_groups, dtype=stats)
    zero, spread = (kernels.empty(x, of_groups, stats) for _ in range(2))
    kernels.run(
        x,
        "compress_rows",
        *(x.data_ptr(), dtype_code(x.dtype), *_runs(x.shape, group), bits),
        *(None if seed is None else pointer(seed, torch.int64), node, dtype_code(stats)),
        *(packed.data_ptr(), zero.data_ptr(), spread.data_ptr()),
    )
    return packed, zero, spread


def _compress_rows_fake(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype, group: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, bits, seed, stats, group)
    *rows, width = x.shape
    of_groups = (*rows, groups_of_row(width, group))
    packed = x.new_empty((*rows, bytes_of_row(width, bits)), dtype=torch.uint8)
    return packed, x.new_empty(of_groups, dtype=stats), x.new_empty(of_groups, dtype=stats)


def _decompress_rows(
    packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype, group: int = 0
) -> Tensor:
    check_packed_rows("decompress_rows", packed, bits, width)
    check_float("decompress_rows", dtype)
    _check_group("decompress_rows", group)
    refuse_gradient("decompress_rows", zero, spread)
    rows = packed.shape[:-1]
    of_groups = (*rows, groups_of_row(width, group))
    if zero.dtype not in STATS or spread.dtype is not zero.dtype or {zero.shape, spread.shape} != {of_groups}:
        raise KernelError(
            f"gqc.decompress_rows: Z {zero.dtype} {list(zero.shape)} and R {spread.dtype} {list(spread.shape)} are not "
            f"those that gqc.compress_rows gives for rows {[*rows, width]}, which are {list(of_groups)}"
        )
    packed = packed.contiguous()
    out = kernels.empty(packed, (*rows, width), dtype)
    if out.numel():
        kernels.run(
            packed,
            "decompress_rows",
            *(packed.data_ptr(), pointer(zero, zero.dtype), pointer(spread, zero.dtype), dtype_code(zero.dtype)),
            *(*_runs(out.shape, group), bits, dtype_code(dtype), out.data_ptr()),
        )
    return out


def _decompress_rows_fake(
    packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype, group: int = 0
) -> Tensor:
    check_bits("decompress_rows", bits)
    _check_group("decompress_rows", group)
    return packed.new_empty((*packed.shape[:-1], width), dtype=dtype)


define(
    "compress_rows(Tensor x, int bits, Tensor? seed, int node, ScalarType stats, int group=0) "
    "-> (Tensor packed, Tensor zero, Tensor range)",
    kernel=_compress_rows,
    fake=_compress_rows_fake,
)
define(
    "decompress_rows(Tensor packed, Tensor zero, Tensor range, int bits, SymInt width, ScalarType dtype, int group=0) "
    "-> Tensor",
    kernel=_decompress_rows,
    fake=_decompress_rows_fake,
)
