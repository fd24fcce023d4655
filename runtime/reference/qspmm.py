"""SPMM on INT8 operands (Tango, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.spmm import by_rows, spmm
from gqc.runtime.reference.spmm_cmp import spmm_cmp


def qspmm(
    g: Sequence[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
    rows: Tensor | None = None,
    divide: bool = False,
) -> tuple[Tensor, Tensor]:
    """SPMM of ``q * scale``; the scales are taken out of the sum, which is exact when every operand is INT8.

    Row v is then multiplied by ``rows[v]``, float32 ``[Nd]``, or, with ``divide``, divided by it.

    Returns:
        out ``[Nd, *F]`` in ``dtype``; the 0-dim float32 absmax of out, NaN if out holds NaN.
    """
    if op == "copy_lhs":
        e = e_scale = None
    elif op == "copy_rhs":
        u = u_scale = None
    u, e = _without_scale(u, u_scale), _without_scale(e, e_scale)
    exact = all(x is None or not x.is_floating_point() for x in (u, e))
    total = spmm(g, op, u if exact else _float(u), e if exact else _float(e))
    out = total.float()
    for scale in combined(u_scale, e_scale):
        out = out * scale
    if dtype is not torch.float64:
        out = out.to(dtype)
    if rows is not None:
        out = by_rows(out, rows, divide)
    out = out.to(dtype)
    return out, out.float().abs().amax() if out.numel() else torch.zeros(())


def qspmm_cmp(
    g: Sequence[Tensor], reduce: str, u: Tensor, u_scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Max or min of ``u[src]``, compared as integers: the scale is not negative, so the order is the same."""
    out, arg = spmm_cmp(g, "copy_lhs", reduce, u.float(), None)
    return (out * u_scale).to(dtype), arg


def combined(lhs_scale: Tensor | None, rhs_scale: Tensor | None) -> list[Tensor]:
    """The one factor that both scales make, or none."""
    scales = [scale for scale in (lhs_scale, rhs_scale) if scale is not None]
    return [scales[0] * scales[1]] if len(scales) == 2 else scales


def _without_scale(x: Tensor | None, scale: Tensor | None) -> Tensor | None:
    return x if x is None or scale is None else x.long()


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()
