"""SPMM with max or min instead of the sum, and the routing of its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.spmm import messages
from gqc.runtime.relation import CSC_EIDS, DST, SRC, num_dst, num_edges, num_src


def spmm_cmp(g: Sequence[Tensor], op: str, reduce: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor, Tensor]:
    """Largest (``reduce="max"``) or smallest (``"min"``) message of each destination, and the edge that it came by.

    Of equal messages the one at the last CSC position wins, as in DGL's float32 kernels for AVX-512 (without AVX-512 it
    is the first there); NaN wins over every number.

    Returns:
        out ``[Nd, *F]``, 0 where a node has no in-edges; arg ``[Nd, *F]``, int64 edge id, -1 where none.
    """
    m = messages(g, op, u, e).index_select(0, g[CSC_EIDS])
    count, features = m.shape[0], m.shape[1:]
    shape = (num_dst(g), *features)
    row = g[DST].index_select(0, g[CSC_EIDS]).long().view(-1, *[1] * len(features)).expand_as(m)
    with torch.no_grad():
        best = m.new_zeros(shape).scatter_reduce(0, row, m, "amax" if reduce == "max" else "amin", include_self=False)
        best = best.gather(0, row)
        wins = (m == best) | (m.isnan() & best.isnan())
        position = torch.arange(count).view(-1, *[1] * len(features)).expand_as(m)
        position = torch.where(wins, position, -1)
        last = torch.full(shape, -1).scatter_reduce(0, row, position, "amax")
    out = torch.cat([m, m.new_zeros(1, *features)]).gather(0, torch.where(last < 0, count, last))
    arg = torch.cat([g[CSC_EIDS].long(), torch.tensor([-1])])[last]
    return out, arg


def spmm_cmp_bwd(g: Sequence[Tensor], arg: Tensor, grad: Tensor) -> Tensor:
    """``[E, *F]``: ``grad`` of each destination on the edge that won there, 0 on all others."""
    edges = num_edges(g)
    row = torch.where(arg < 0, edges, arg)
    return grad.new_zeros(edges + 1, *grad.shape[1:]).scatter(0, row, grad)[:edges]


def spmm_cmp_bwd_src(g: Sequence[Tensor], arg: Tensor, grad: Tensor) -> Tensor:
    """``[Ns, *F]``: ``grad`` of each destination summed at the source of the edge that won there."""
    sources = num_src(g)
    row = torch.cat([g[SRC].long(), torch.tensor([sources])])[arg]
    return grad.new_zeros(sources + 1, *grad.shape[1:]).scatter_add(0, row, grad)[:sources]
