"""Rows of a table in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def gather_rows(table: Tensor, index: Tensor) -> Tensor:
    """``table [N, ...]`` at ``index [*]``: ``[*, ...]``."""
    return table[index.long()]
