"""Products of matrices with sums in double precision, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def mm(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None = None) -> Tensor:
    """``a @ b``, or ``a @ (rows * b)``.

    Args:
        a: float ``[M, K]``, or ``[K, M]`` with ``trans_a``.
        b: ``[K, N]``, or ``[N, K]`` with ``trans_b``, of the type of ``a``.
        trans_a: contract the first axis of ``a``.
        trans_b: contract the last axis of ``b``.
        rows: a factor for each row of ``b``, ``[K]``; the products are rounded to the type of ``b``.

    Returns:
        ``[M, N]`` of the type of ``a``, sums rounded once.
    """
    b = b if rows is None else b * rows[:, None]
    wide = (a.t() if trans_a else a).double() @ (b.t() if trans_b else b).double()
    return wide.to(a.dtype)
