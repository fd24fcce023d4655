"""Weighted sums of rows in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def weighted_sum(weights: Tensor, x: Tensor, index: Tensor | None = None) -> Tensor:
    """``weights [*, K]``, ``x [*, K, D]`` or, with ``index [*, K]``, a table ``[N, D]``: ``[*, D]``."""
    rows = x if index is None else x[index.long()]
    return (weights[..., None] * rows).sum(-2)


def weighted_sum_bwd_weights(table: Tensor, index: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the weights, ``[*, K]``, from that of the sums, ``[*, D]``."""
    return (table[index.long()] * grad[..., None, :]).sum(-1)


def add_rows(grad: Tensor, index: Tensor, num: int, weights: Tensor | None = None) -> Tensor:
    """The gradient of a table, ``[num, D]``, from ``grad [*, D]`` of its rows at ``index [*]``; with ``weights`` and an
    ``index`` of ``[*, K]``, from that of their sums.
    """
    rows = grad if weights is None else weights[..., None] * grad[..., None, :]
    return grad.new_zeros(num, grad.shape[-1]).index_add(0, index.reshape(-1), rows.reshape(-1, grad.shape[-1]))
