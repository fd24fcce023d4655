"""Products of matrices with sums in double precision, in plain PyTorch.

bf16x3: of ``x = high + low``, both bfloat16, the products high * high, high * low and low * high.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEFT_OUT = 2.0**-15
"""The largest part of a product that bf16x3 leaves out: 2^-16 for low * low, and 2^-17 for rounding each low part."""


def mm(
    a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None = None, precision: str = "fp32"
) -> Tensor:
    """``a @ b``, or ``a @ (rows * b)``.

    Args:
        a: float ``[M, K]``, or ``[K, M]`` with ``trans_a``.
        b: ``[K, N]``, or ``[N, K]`` with ``trans_b``, of the type of ``a``.
        trans_a: contract the first axis of ``a``.
        trans_b: contract the last axis of ``b``.
        rows: a factor for each row of ``b``, ``[K]``; the products are rounded to the type of ``b``.
        precision: ``"fp32"`` or, for float32, ``"bf16x3"``.

    Returns:
        ``[M, N]`` of the type of ``a``, sums rounded once.
    """
    b = b if rows is None else b * rows[:, None]
    a, b = (a.t() if trans_a else a), (b.t() if trans_b else b)
    if precision == "fp32":
        return (a.double() @ b.double()).to(a.dtype)
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    return (a_high @ b_high + a_high @ b_low + a_low @ b_high).to(a.dtype)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest bfloat16 of float32 values and what is left, rounded to bfloat16, both as double precision.

    bfloat16 keeps the upper 16 bits; ties are rounded away from zero.
    """
    high = _nearest(x)
    return high.double(), _nearest(x - high).double()


def _nearest(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)
