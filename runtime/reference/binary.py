"""The per-edge operation of SPMM and SDDMM on rows already brought to the edges."""

from __future__ import annotations

from torch import Tensor

from gqc.runtime.features import pad_features


def binary(op: str, lhs: Tensor | None, rhs: Tensor | None) -> Tensor:
    """``op(lhs, rhs)`` for ``[E, *L]`` and ``[E, *R]``; ``dot`` sums the last axis and keeps it as size 1."""
    if op == "copy_lhs":
        return lhs
    if op == "copy_rhs":
        return rhs
    rank = max(lhs.dim(), rhs.dim()) - 1
    lhs, rhs = pad_features(lhs, rank), pad_features(rhs, rank)
    if op == "add":
        return lhs + rhs
    if op == "sub":
        return lhs - rhs
    if op == "mul":
        return lhs * rhs
    if op == "div":
        return lhs / rhs
    if op == "dot":
        return (lhs * rhs).sum(-1, keepdim=True)
    raise ValueError(f"unknown operation {op!r}")
