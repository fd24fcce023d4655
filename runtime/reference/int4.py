"""Packed 4-bit values and the ops on them in plain PyTorch: unpack, then what int8 does, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.gemm import qgemm
from gqc.runtime.reference.qsddmm import qsddmm
from gqc.runtime.reference.qspmm import qspmm
from gqc.runtime.reference.quantize import quantize


def pack_int4(q: Tensor) -> Tensor:
    """Pack int8 values from -8 to 7, two a byte.

    Args:
        q: int8 ``[N, *F]``.

    Returns:
        uint8 ``[N, (W + 1) // 2]`` for ``W`` values a row: value ``2i`` is the low half of byte ``i``, value ``2i + 1``
        the high half, which is 0 where a row ends before it.
    """
    rows = q.reshape(q.shape[0], -1) if q.numel() else q.new_zeros(q.shape[0], q.shape[1:].numel())
    rows = torch.nn.functional.pad(rows.to(torch.uint8) & 15, (0, rows.shape[1] % 2))
    return rows[:, ::2] | (rows[:, 1::2] << 4)


def unpack_int4(packed: Tensor, features: Sequence[int]) -> Tensor:
    """int8 ``[N, *features]``, what :func:`pack_int4` was given."""
    halves = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1).to(torch.int8)
    width = torch.Size(features).numel()
    return torch.where(halves > 7, halves - 16, halves)[:, :width].reshape(packed.shape[0], *features)


def quantize_int4(
    x: Tensor, absmax: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    """Values of :func:`quantize` with 2 to 4 bits, packed; the scale is the same."""
    q, scale = quantize(x, absmax, seed, node, bits, stochastic)
    return pack_int4(q), scale


def qgemm_int4(
    a: Tensor,
    a_scale: Tensor,
    a_width: int,
    b: Tensor,
    b_scale: Tensor,
    b_width: int,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """:func:`qgemm` of packed matrices, whose lines hold ``a_width`` and ``b_width`` values."""
    a, b = unpack_int4(a, [a_width]), unpack_int4(b, [b_width])
    return qgemm(a, a_scale, b, b_scale, trans_a, trans_b, bias, dtype)


def qspmm_int4(
    g: Sequence[Tensor],
    op: str,
    u: Tensor,
    u_scale: Tensor,
    u_features: Sequence[int],
    e: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """:func:`qspmm` of packed node features with ``u_features`` and float edge weights."""
    return qspmm(g, op, unpack_int4(u, u_features), u_scale, e, None, dtype)


def qsddmm_int4(
    g: Sequence[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    lhs_features: Sequence[int] | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    rhs_features: Sequence[int] | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    """:func:`qsddmm` of features that are packed where they have a scale, and float where they have none."""
    lhs = lhs if lhs_features is None else unpack_int4(lhs, lhs_features)
    rhs = rhs if rhs_features is None else unpack_int4(rhs, rhs_features)
    return qsddmm(g, op, lhs, lhs_scale, rhs, rhs_scale, lhs_target, rhs_target, dtype)
