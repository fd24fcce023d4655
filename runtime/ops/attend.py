"""Attention with logits from keys and queries as one op forward and one backward, without tensors on edges.

Logits are ``factor * <k[src], q[dst]>`` (Vaswani et al., "Attention Is All You Need", NeurIPS'17, equation 1) or, with
a vector ``a``, ``<a, leaky_relu(k[src] + q[dst], factor)>`` (GATv2; Brody et al., "How Attentive are Graph Attention
Networks?", ICLR'22, equation 7). Their softmax over the in-edges of a destination, dropout and the weighted sum of
``u[src]`` are those of :mod:`gqc.runtime.ops.gat`. Keys and queries are read in float32; on a GPU the reference runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.ops.gat import STATISTICS, check_features, check_statistics, dropout_arguments
from gqc.runtime.ops.graph_arguments import (
    address,
    check_floats,
    check_output,
    check_rows,
    float32,
    is_int64,
    quantized_or_float32,
    rounded,
)
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.reference import attend as reference
from gqc.runtime.relation import (
    CSC_EIDS,
    CSC_INDICES,
    CSC_INDPTR,
    CSR_EIDS,
    CSR_INDICES,
    CSR_INDPTR,
    num_dst,
    num_src,
)


def _attend(
    g: list[Tensor],
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
    _check("attend", g, k, q, a, (u, u_scale, "u"), p=p, seed=seed, dtype=dtype)
    refuse_gradient("attend", k, q, a, u)
    k, q, a, u = float32(k), float32(q), _float32(a), quantized_or_float32(u, u_scale)
    if kernels.on_gpu(u):
        return reference.attend(g, k, q, a, factor, u, u_scale, p, seed, node, dtype)
    heads, width = u.shape[1:]
    out = kernels.empty(q, (num_dst(g), heads, width))
    largest, total = (kernels.empty(q, (num_dst(g), heads)) for _ in range(2))
    if not largest.numel():
        return out.to(dtype), q.new_zeros(()), largest, total
    absmax = kernels.new_absmax(out)
    kernels.run(
        out,
        "attend",
        *(is_int64(g), num_dst(g), *(g[part].data_ptr() for part in (CSC_INDPTR, CSC_INDICES, CSC_EIDS))),
        *(k.data_ptr(), q.data_ptr(), address(a), factor, k.shape[2], u.data_ptr(), address(u_scale), heads, width),
        *(*dropout_arguments(p, seed, node), out.data_ptr(), absmax.data_ptr(), largest.data_ptr(), total.data_ptr()),
    )
    return *rounded(out, absmax, dtype), largest, total


def _attend_fake(
    g: list[Tensor],
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
    out = u.new_empty([num_dst(g), *u.shape[1:]], dtype=dtype)
    statistic = q.new_empty(q.shape[:2], dtype=torch.float32)
    return out, q.new_empty((), dtype=torch.float32), statistic, torch.empty_like(statistic)


def _attend_bwd(
    g: list[Tensor],
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
    _check("attend_bwd", g, k, q, a, (u, u_scale, "u"), (grad, grad_scale, "v"), p=p, seed=seed, dtype=dtype)
    refuse_gradient("attend_bwd", k, q, a, u, grad)
    check_statistics("attend", q.shape[:2], max, sum)
    k, q, a, max, sum = float32(k), float32(q), _float32(a), max.contiguous(), sum.contiguous()
    u, grad = quantized_or_float32(u, u_scale), quantized_or_float32(grad, grad_scale)
    if kernels.on_gpu(u):
        return reference.attend_bwd(g, k, q, a, factor, max, sum, u, u_scale, grad, grad_scale, p, seed, node, dtype)
    heads, width = u.shape[1:]
    d_u, d_k, d_q = (kernels.empty(q, x.shape) for x in (u, k, q))
    d_a = kernels.empty(q, _vector_shape(k, a))
    if not (num_src(g) and num_dst(g) and heads):
        return d_u.zero_().to(dtype), q.new_zeros(()), d_k.zero_(), d_q.zero_(), d_a.zero_()
    absmax = kernels.new_absmax(d_u)
    stats = kernels.empty(q, (num_dst(g), STATISTICS, heads))
    csc, csr = (CSC_INDPTR, CSC_INDICES, CSC_EIDS), (CSR_INDPTR, CSR_INDICES, CSR_EIDS)
    kernels.run(
        d_u,
        "attend_bwd",
        *(is_int64(g), num_src(g), num_dst(g), *(g[part].data_ptr() for part in (*csc, *csr))),
        *(k.data_ptr(), q.data_ptr(), address(a), factor, k.shape[2], max.data_ptr(), sum.data_ptr()),
        *(u.data_ptr(), address(u_scale), grad.data_ptr(), address(grad_scale), heads, width),
        *(*dropout_arguments(p, seed, node), stats.data_ptr(), d_u.data_ptr(), absmax.data_ptr()),
        *(d_k.data_ptr(), d_q.data_ptr(), d_a.data_ptr()),
    )
    return *rounded(d_u, absmax, dtype), d_k, d_q, d_a


def _attend_bwd_fake(
    g: list[Tensor],
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
    d_k, d_q = (x.new_empty(x.shape, dtype=torch.float32) for x in (k, q))
    d_a = q.new_empty(_vector_shape(k, a), dtype=torch.float32)
    return u.new_empty(u.shape, dtype=dtype), q.new_empty((), dtype=torch.float32), d_k, d_q, d_a


def _vector_shape(k: Tensor, a: Tensor | None) -> tuple[int, int]:
    return (0 if a is None else k.shape[1], k.shape[2])


def _float32(a: Tensor | None) -> Tensor | None:
    return None if a is None else float32(a)


def _check(
    name: str,
    g: list[Tensor],
    k: Tensor,
    q: Tensor,
    a: Tensor | None,
    *features: tuple[Tensor, Tensor | None, str],
    p: float,
    seed: Tensor | None,
    dtype: torch.dtype,
) -> None:
    check_rows(name, g, k, "u")
    check_rows(name, g, q, "v")
    check_floats(name, k, q, a)
    check_output(name, dtype)
    fits = k.dim() == q.dim() == 3 and k.shape[1:] == q.shape[1:] and k.shape[2] > 0
    if not fits or (a is not None and a.shape != k.shape[1:]):
        raise KernelError(
            f"gqc.{name}: keys {list(k.shape)}, queries {list(q.shape)}"
            f"{'' if a is None else f' and a vector {list(a.shape)}'}: they must be [nodes, heads, width]"
            f"{'' if a is None else ' and [heads, width]'}"
        )
    check_features(name, g, k.shape[1], *features, p=p, seed=seed)
    if torch.float64 in (k.dtype, q.dtype, dtype, *(x.dtype for x, _, _ in features)):
        raise KernelError(f"gqc.{name} computes in float32 and got float64: convert it, or use edge_softmax and spmm")


define(
    "attend(Tensor[] g, Tensor k, Tensor q, Tensor? a, float factor, Tensor u, Tensor? u_scale, float p, Tensor? seed, "
    "int node, ScalarType dtype) -> (Tensor out, Tensor absmax, Tensor max, Tensor sum)",
    kernel=_attend,
    fake=_attend_fake,
)
define(
    "attend_bwd(Tensor[] g, Tensor k, Tensor q, Tensor? a, float factor, Tensor max, Tensor sum, Tensor u, "
    "Tensor? u_scale, Tensor grad, Tensor? grad_scale, float p, Tensor? seed, int node, ScalarType dtype) "
    "-> (Tensor d_u, Tensor absmax, Tensor d_k, Tensor d_q, Tensor d_a)",
    kernel=_attend_bwd,
    fake=_attend_bwd_fake,
)
