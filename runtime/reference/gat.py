"""The edge phase of graph attention in plain PyTorch, in the dtype of its float arguments.

Veličković et al., "Graph Attention Networks", ICLR'18, equations 3, 4 and 6, with dropout of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.philox import random_bits
from gqc.runtime.relation import DST, SRC, num_dst, num_src


def gat(
    g: Sequence[Tensor],
    el: Tensor,
    er: Tensor,
    u: Tensor,
    u_scale: Tensor | None,
    slope: float,
    p: float,
    seed: Tensor | None,
    node: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to the sources of in-edges.

    Args:
        g: the relation.
        el, er: ``[Ns, H]`` and ``[Nd, H]``, what sources and destinations add to the logits.
        u: ``[Ns, H, D]`` int8 with a scale, or float without.
        slope: of the leaky ReLU.
        p: probability with which an attention weight is dropped; 0 without ``seed``.
        seed, node: choose the mask, that of ``gqc.dropout`` for an ``[E, H, 1]`` tensor in edge-id order.
        dtype: of out.

    Returns:
        out ``[Nd, H, D]``; its absmax; the largest logit and the sum of ``exp(logit - largest)`` of each destination,
        ``[Nd, H]``, 0 for one without in-edges.
    """
    src, dst = g[SRC].long(), g[DST].long()
    e = torch.nn.functional.leaky_relu(el[src] + er[dst], slope)
    largest, total = softmax_statistics(g, e)
    kept = (e - largest[dst]).exp() / total[dst] * attention_mask(e, p, seed, node)
    out = er.new_zeros(num_dst(g), *u.shape[1:]).index_add(0, dst, kept.unsqueeze(-1) * _wide(u, er)[src])
    return *rounded_with_absmax(out, u_scale, dtype), largest, total


def gat_bwd(
    g: Sequence[Tensor],
    el: Tensor,
    er: Tensor,
    max: Tensor,
    sum: Tensor,
    u: Tensor,
    u_scale: Tensor | None,
    grad: Tensor,
    grad_scale: Tensor | None,
    slope: float,
    p: float,
    seed: Tensor | None,
    node: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of :func:`gat` from that of its output.

    Args:
        max, sum: what :func:`gat` returned.
        grad: ``[Nd, H, D]`` int8 with a scale, or float without.
        dtype: of d_u.

    Returns:
        d_u ``[Ns, H, D]`` and its absmax, d_el ``[Ns, H]``, d_er ``[Nd, H]``.
    """
    src, dst = g[SRC].long(), g[DST].long()
    logits = el[src] + er[dst]
    a = (torch.nn.functional.leaky_relu(logits, slope) - max[dst]).exp() / sum[dst]
    mask = attention_mask(a, p, seed, node)
    d_u = el.new_zeros(num_src(g), *u.shape[1:]).index_add(0, src, (a * mask).unsqueeze(-1) * _wide(grad, el)[dst])
    d_a = (_wide(u, el)[src] * _wide(grad, el)[dst]).sum(-1) * mask
    for scale in (u_scale, grad_scale):
        d_a = d_a if scale is None else d_a * scale
    subtracted = er.new_zeros(er.shape).index_add(0, dst, a * d_a)
    d_logits = a * (d_a - subtracted[dst]) * torch.where(logits > 0, 1.0, slope)
    d_el, d_er = (x.new_zeros(x.shape).index_add(0, end, d_logits) for x, end in ((el, src), (er, dst)))
    return *rounded_with_absmax(d_u, grad_scale, dtype), d_el, d_er


def softmax_statistics(g: Sequence[Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit and sum of ``exp(logit - largest)`` of each destination, ``[Nd, H]``, of logits ``[E, H]``."""
    dst, nothing = g[DST].long(), logits.new_zeros(num_dst(g), logits.shape[1])
    largest = nothing.scatter_reduce(0, dst.unsqueeze(-1).expand_as(logits), logits, "amax", include_self=False)
    return largest, nothing.index_add(0, dst, (logits - largest[dst]).exp())


def _wide(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


def attention_mask(a: Tensor, p: float, seed: Tensor | None, node: int) -> Tensor:
    """What dropout multiplies attention ``[E, H]`` with."""
    if not p or seed is None:
        return torch.ones_like(a)
    kept = random_bits(a.numel(), seed, node).to(a.device) >= round(p * 65536)
    return torch.where(kept.view(a.shape), 1 / (1 - p) if p < 1 else 0.0, 0.0).to(a.dtype)


def rounded_with_absmax(out: Tensor, scale: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``out`` times a scale in ``dtype``, and its absmax."""
    out = (out if scale is None else out * scale).to(dtype)
    return out, out.float().abs().amax() if out.numel() else torch.zeros(())
