"""The edge phase of graph attention (GAT) as one op forward and one backward, without tensors on edges.

Logits ``e = leaky_relu(el[src] + er[dst])``, attention ``a``: their softmax over the in-edges of a destination, then
dropout, output: the sum of ``a * u[src]`` (Veličković et al., "Graph Attention Networks", ICLR'18, equations 3, 4, 6).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.dropout import factor, threshold
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
from gqc.runtime.relation import (
    CSC_EIDS,
    CSC_INDICES,
    CSC_INDPTR,
    CSR_EIDS,
    CSR_INDICES,
    CSR_INDPTR,
    num_dst,
    num_edges,
    num_src,
)

STATISTICS = 4
"""Of a destination and head: er, max, 1 / sum and what the gradient of a softmax subtracts."""


def _gat(
    g: list[Tensor],
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
    _check("gat", g, el, er, (u, u_scale, "u"), p=p, seed=seed, dtype=dtype)
    refuse_gradient("gat", el, er, u)
    el, er, u = float32(el), float32(er), quantized_or_float32(u, u_scale)
    heads, width = u.shape[1:]
    out = kernels.empty(er, (num_dst(g), heads, width))
    largest, total = kernels.empty(er, er.shape), kernels.empty(er, er.shape)
    if not largest.numel():
        return out.to(dtype), er.new_zeros(()), largest, total
    absmax = kernels.new_absmax(out)
    kernels.run(
        out,
        "gat",
        *(is_int64(g), num_dst(g), num_edges(g)),
        *(g[part].data_ptr() for part in (CSC_INDPTR, CSC_INDICES, CSC_EIDS)),
        *(el.data_ptr(), er.data_ptr(), u.data_ptr(), address(u_scale), heads, width),
        *(
            slope,
            *dropout_arguments(p, seed, node),
            out.data_ptr(),
            absmax.data_ptr(),
            largest.data_ptr(),
            total.data_ptr(),
        ),
    )
    return *rounded(out, absmax, dtype), largest, total


def _gat_fake(
    g: list[Tensor],
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
    out = u.new_empty([num_dst(g), *u.shape[1:]], dtype=dtype)
    statistic = er.new_empty(er.shape, dtype=torch.float32)
    return out, er.new_empty((), dtype=torch.float32), statistic, torch.empty_like(statistic)


def _gat_bwd(
    g: list[Tensor],
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
    _check("gat_bwd", g, el, er, (u, u_scale, "u"), (grad, grad_scale, "v"), p=p, seed=seed, dtype=dtype)
    refuse_gradient("gat_bwd", el, er, u, grad)
    check_statistics("gat", er.shape, max, sum)
    el, er, max, sum = float32(el), float32(er), max.contiguous(), sum.contiguous()
    u, grad = quantized_or_float32(u, u_scale), quantized_or_float32(grad, grad_scale)
    heads, width = u.shape[1:]
    d_u, d_el, d_er = (kernels.empty(er, x.shape) for x in (u, el, er))
    if not (d_el.numel() and d_er.numel()):
        return d_u.zero_().to(dtype), er.new_zeros(()), d_el.zero_(), d_er.zero_()
    absmax = kernels.new_absmax(d_u)
    stats = kernels.empty(er, (num_dst(g), STATISTICS, heads))
    csc, csr = (CSC_INDPTR, CSC_INDICES, CSC_EIDS), (CSR_INDPTR, CSR_INDICES, CSR_EIDS)
    kernels.run(
        d_u,
        "gat_bwd",
        *(is_int64(g), num_src(g), num_dst(g), num_edges(g), *(g[part].data_ptr() for part in (*csc, *csr))),
        *(el.data_ptr(), er.data_ptr(), max.data_ptr(), sum.data_ptr()),
        *(u.data_ptr(), address(u_scale), grad.data_ptr(), address(grad_scale), heads, width),
        *(slope, *dropout_arguments(p, seed, node), stats.data_ptr()),
        *(d_u.data_ptr(), absmax.data_ptr(), d_el.data_ptr(), d_er.data_ptr()),
    )
    return *rounded(d_u, absmax, dtype), d_el, d_er


def _gat_bwd_fake(
    g: list[Tensor],
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
    d_u = u.new_empty(u.shape, dtype=dtype)
    d_el, d_er = (x.new_empty(x.shape, dtype=torch.float32) for x in (el, er))
    return d_u, er.new_empty((), dtype=torch.float32), d_el, d_er


def _check(
    name: str,
    g: list[Tensor],
    el: Tensor,
    er: Tensor,
    *features: tuple[Tensor, Tensor | None, str],
    p: float,
    seed: Tensor | None,
    dtype: torch.dtype,
) -> None:
    check_rows(name, g, el, "u")
    check_rows(name, g, er, "v")
    check_floats(name, el, er)
    check_output(name, dtype)
    if not el.dim() == er.dim() == 2 or el.shape[1] != er.shape[1]:
        raise KernelError(
            f"gqc.{name}: logits of shapes {list(el.shape)} and {list(er.shape)}: they must be [nodes, heads]"
        )
    check_features(name, g, el.shape[1], *features, p=p, seed=seed)
    if torch.float64 in (el.dtype, er.dtype, dtype, *(x.dtype for x, _, _ in features)):
        raise KernelError(f"gqc.{name} computes in float32 and got float64: convert it, or use edge_softmax and spmm")


def check_statistics(op: str, shape: Sequence[int], max: Tensor, sum: Tensor) -> None:
    """Refuse what is no largest logit and sum that ``op`` returned for destinations and heads of a shape."""
    for name, statistic in (("max", max), ("sum", sum)):
        if statistic.shape != shape or statistic.dtype is not torch.float32:
            raise KernelError(f"gqc.{op}_bwd: {name} is none that gqc.{op} returned for nodes and heads {list(shape)}")


def check_features(
    name: str,
    g: list[Tensor],
    heads: int,
    *features: tuple[Tensor, Tensor | None, str],
    p: float,
    seed: Tensor | None,
) -> None:
    """Refuse features, with their scale and what they stand on, and a dropout that an edge phase cannot take."""
    shape = features[0][0].shape[1:]
    for x, scale, target in features:
        check_rows(name, g, x, target)
        if x.dim() != 3 or x.shape[1:] != shape or x.shape[1] != heads:
            raise KernelError(
                f"gqc.{name}: {heads} heads and features of shape {list(x.shape)}: they must be [nodes, heads, width]"
            )
        quantized = x.dtype is torch.int8 and scale is not None and scale.dtype is torch.float32 and scale.numel() == 1
        if not quantized and (scale is not None or not x.is_floating_point()):
            raise KernelError(
                f"gqc.{name}: features of {x.dtype} {'without a' if scale is None else 'with this'} scale: int8 goes "
                "with a scale, one float32 number, and a floating-point type without"
            )
    if not 0 <= p <= 1:
        raise KernelError(f"gqc.{name}: p={p} is no probability")
    if p and (seed is None or seed.numel() != 2):
        raise KernelError(f"gqc.{name}: dropout needs a seed, the int64 tensor [number drawn, step]")


def dropout_arguments(p: float, seed: Tensor | None, node: int) -> tuple[int | None, int, int, float]:
    """Seed, stream, threshold and factor of what is kept, as of ``gqc.dropout``; no seed where nothing is dropped."""
    if not p or seed is None:
        return None, 0, 0, 1.0
    return pointer(seed, torch.int64), node, threshold(p), factor(p)


define(
    "gat(Tensor[] g, Tensor el, Tensor er, Tensor u, Tensor? u_scale, float slope, float p, Tensor? seed, int node, "
    "ScalarType dtype) -> (Tensor out, Tensor absmax, Tensor max, Tensor sum)",
    kernel=_gat,
    fake=_gat_fake,
)
define(
    "gat_bwd(Tensor[] g, Tensor el, Tensor er, Tensor max, Tensor sum, Tensor u, Tensor? u_scale, Tensor grad, "
    "Tensor? grad_scale, float slope, float p, Tensor? seed, int node, ScalarType dtype) "
    "-> (Tensor d_u, Tensor absmax, Tensor d_el, Tensor d_er)",
    kernel=_gat_bwd,
    fake=_gat_bwd_fake,
)
