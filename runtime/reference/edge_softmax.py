"""Softmax of edge values over the in-edges of each destination."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.relation import DST, num_dst


def edge_softmax(g: Sequence[Tensor], logits: Tensor) -> Tensor:
    """``exp(x - m) / sum of exp(x - m)`` with m the largest logit of the destination, for every head; ``[E, *F]``."""
    features = logits.shape[1:]
    row = g[DST].long()
    with torch.no_grad():
        index = row.view(-1, *[1] * len(features)).expand_as(logits)
        zeros = logits.new_zeros(num_dst(g), *features)
        largest = zeros.scatter_reduce(0, index, logits, "amax", include_self=False)
    weight = (logits - largest.index_select(0, row)).exp()
    total = torch.zeros_like(largest).index_add(0, row, weight)
    return weight / total.index_select(0, row)


def edge_softmax_bwd(g: Sequence[Tensor], out: Tensor, grad: Tensor) -> Tensor:
    """``out * (grad - sum of out * grad over the destination's in-edges)``, ``[E, *F]``."""
    row = g[DST].long()
    product = out * grad
    total = product.new_zeros(num_dst(g), *product.shape[1:]).index_add(0, row, product)
    return product - out * total.index_select(0, row)
