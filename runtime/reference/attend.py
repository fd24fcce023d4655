"""Attention with logits from keys and queries in plain PyTorch, in the dtype of the keys.

Brody et al., "How Attentive are Graph Attention Networks?", ICLR'22, equation 7; Vaswani et al., "Attention Is All You
Need", NeurIPS'17, equation 1, over the in-edges of a node.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gqc.runtime.reference.gat import attention_mask, rounded_with_absmax, softmax_statistics
from gqc.runtime.relation import DST, SRC, num_dst, num_src


def attend(
    g: Sequence[Tensor],
    k: Tensor,
    q: Tensor,
    a: Tensor | None,
    factor: float,
    u: Tensor,
    u_scale: Tensor | None,
    p: float,
    seed: Tensor | None,
    node: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend to the sources of in-edges.

    Args:
        g: the relation.
        k, q: ``[Ns, H, K]`` and ``[Nd, H, K]``, keys of sources and queries of destinations.
        a: ``[H, K]``; logits are ``<a, leaky_relu(k + q, factor)>`` with it, else ``factor * <k, q>``.
        factor: the slope of the leaky ReLU, or what dot products are multiplied with.
        u: ``[Ns, H, D]`` int8 with a scale, or float without.
        p: probability with which an attention weight is dropped; 0 without ``seed``.
        seed, node: choose the mask, that of ``gqc.dropout`` for an ``[E, H, 1]`` tensor in edge-id order.
        dtype: of out.

    Returns:
        out ``[Nd, H, D]``; its absmax; the largest logit and the sum of ``exp(logit - largest)`` of each destination,
        ``[Nd, H]``, 0 for one without in-edges.
    """
    src, dst = g[SRC].long(), g[DST].long()
    logits = _logits(k[src], q[dst], a, factor)
    largest, total = softmax_statistics(g, logits)
    kept = (logits - largest[dst]).exp() / total[dst] * attention_mask(logits, p, seed, node)
    messages = kept.unsqueeze(-1) * u[src].to(k.dtype)
    out = k.new_zeros(num_dst(g), *u.shape[1:]).index_add(0, dst, messages)
    return *rounded_with_absmax(out, u_scale, dtype), largest, total


def attend_bwd(
    g: Sequence[Tensor],
    k: Tensor,
    q: Tensor,
    a: Tensor | None,
    factor: float,
    max: Tensor,
    sum: Tensor,
    u: Tensor,
    u_scale: Tensor | None,
    grad: Tensor,
    grad_scale: Tensor | None,
    p: float,
    seed: Tensor | None,
    node: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of :func:`attend` from that of its output.

    Args:
        max, sum: what :func:`attend` returned.
        grad: ``[Nd, H, D]`` int8 with a scale, or float without.
        dtype: of d_u.

    Returns:
        d_u ``[Ns, H, D]`` and its absmax, d_k ``[Ns, H, K]``, d_q ``[Nd, H, K]``, d_a ``[H, K]``, ``[0, K]`` without
        ``a``.
    """
    src, dst = g[SRC].long(), g[DST].long()
    keys, queries = k[src], q[dst]
    weight = (_logits(keys, queries, a, factor) - max[dst]).exp() / sum[dst]
    mask = attention_mask(weight, p, seed, node)
    gradients = grad[dst].to(k.dtype)
    d_u = k.new_zeros(num_src(g), *u.shape[1:]).index_add(0, src, (weight * mask).unsqueeze(-1) * gradients)
    d_weight = (u[src].to(k.dtype) * gradients).sum(-1) * mask
    for scale in (u_scale, grad_scale):
        d_weight = d_weight if scale is None else d_weight * scale
    subtracted = torch.zeros_like(sum, dtype=k.dtype).index_add(0, dst, weight * d_weight)
    d_logits = (weight * (d_weight - subtracted[dst])).unsqueeze(-1)
    if a is None:
        of_keys, of_queries, d_a = d_logits * factor * queries, d_logits * factor * keys, k.new_zeros(0, k.shape[2])
    else:
        both = keys + queries
        of_keys = of_queries = d_logits * a * torch.where(both > 0, 1.0, factor)
        d_a = (d_logits * F.leaky_relu(both, factor)).sum(0)
    d_k, d_q = torch.zeros_like(k).index_add(0, src, of_keys), torch.zeros_like(q).index_add(0, dst, of_queries)
    return *rounded_with_absmax(d_u, grad_scale, dtype), d_k, d_q, d_a


def _logits(keys: Tensor, queries: Tensor, a: Tensor | None, factor: float) -> Tensor:
    if a is None:
        return factor * (keys * queries).sum(-1)
    return (a * F.leaky_relu(keys + queries, factor)).sum(-1)
