"""Sums over in-edges of the source's row times the matrix of the edge's type, in plain PyTorch (differentiable)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.segment_mm import gather_mm
from gqc.runtime.relation import CSC_EIDS, DST, SRC, num_dst

PART = 8192
"""Edges into one node whose weighted sum comes before it is added to others."""


def typed_spmm(g: Sequence[Tensor], u: Tensor, b: Tensor, types: Tensor, e: Tensor | None = None) -> Tensor:
    """``out[v]`` is the sum of ``e * (u[src] @ b[type])`` over the in-edges of v (Schlichtkrull et al., ESWC 2018).

    Args:
        g: a relation.
        u: ``[Ns, K]``.
        b: ``[R, K, M]``.
        types: integer ``[E]``, values from 0 to R - 1.
        e: a weight for each edge, ``[E]`` or ``[E, 1]``, by default 1.

    Returns:
        ``[Nd, M]``.
    """
    messages = gather_mm(u.index_select(0, g[SRC]), b, types)
    messages = messages if e is None else messages * e.reshape(-1, 1)
    return messages.new_zeros(num_dst(g), b.shape[2]).index_add(0, g[DST], messages)


def typed_spmm_bwd_b(
    g: Sequence[Tensor], u: Tensor, grad: Tensor, types: Tensor, num: int, e: Tensor | None = None
) -> Tensor:
    """``out[r]`` is the sum over the edges of type r of the outer product of ``u[src]`` and ``grad[dst]``, times ``e``.

    Returns:
        ``[num, K, M]``.
    """
    products = u.index_select(0, g[SRC])[:, :, None] * grad.index_select(0, g[DST])[:, None, :]
    products = products if e is None else products * e.reshape(-1, 1, 1)
    return products.new_zeros(num, u.shape[1], grad.shape[1]).index_add(0, types.long(), products)


def qtyped_spmm(
    g: Sequence[Tensor],
    u: Tensor,
    u_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    types: Tensor,
    e: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """:func:`typed_spmm` of ``q * scale``; the scales are taken out of the sums.

    Sums are exact without weights. Else each exact product is rounded to float32, times its weight, and added in the
    order of types and, within one, of the in-edges of a node; :data:`PART` of a node at a time, whose sums are then
    added in order.

    Returns:
        out in ``dtype``, its 0-dim float32 absmax.
    """
    if e is None:
        return _scaled(typed_spmm(g, u.long(), b.long(), types), u_scale * b_scale, dtype)
    order = g[CSC_EIDS][types[g[CSC_EIDS].long()].argsort(stable=True)].long()
    messages = gather_mm(u.long().index_select(0, g[SRC]), b.long(), types).float() * e.float().reshape(-1, 1)
    sums, part = (messages.new_zeros(num_dst(g), b.shape[2]) for _ in range(2))
    left = [PART] * num_dst(g)
    for edge, node in zip(order.tolist(), g[DST][order].tolist(), strict=True):
        part[node] += messages[edge]
        left[node] -= 1
        if not left[node]:
            sums[node] += part[node]
            part[node], left[node] = 0, PART
    return _scaled(sums + part, u_scale * b_scale, dtype)


def qtyped_spmm_bwd_b(
    g: Sequence[Tensor],
    u: Tensor,
    u_scale: Tensor,
    grad: Tensor,
    grad_scale: Tensor,
    types: Tensor,
    num: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """:func:`typed_spmm_bwd_b` of ``q * scale``, as :func:`qtyped_spmm`."""
    return _scaled(typed_spmm_bwd_b(g, u.long(), grad.long(), types, num), u_scale * grad_scale, dtype)


def _scaled(sums: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out = (sums.float() * scale).to(dtype)
    return out, out.float().abs().amax() if out.numel() else torch.zeros(())
