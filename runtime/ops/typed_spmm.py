"""The aggregation of an RGCN: for each node, the sum over its in-edges of the source's row times the matrix of the
edge's type (Schlichtkrull et al., ESWC 2018, equation 2, without its self-loop).

On the CPU no message is in memory: a thread keeps the sums of a block of destinations in its cache and adds to them the
products of the edges of one type after the other. Those of a node with very many threads share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.memory import ByIdentity
from gqc.runtime.ops.graph_arguments import address, check_floats, check_rows, float32, is_int64
from gqc.runtime.ops.library import define, differentiate, refuse_gradient
from gqc.runtime.ops.quantize import check_float
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, DST, SRC, num_dst, num_edges, reverse

MOST_FEATURES = 131072
"""Of a source's int8 row: so many products fit an int32 sum."""


class _TypedEdges(NamedTuple):
    """The edges by type, those of one type by destination: type t has edges ``starts[t]`` to ``starts[t + 1]``."""

    starts: Tensor
    src: Tensor
    dst: Tensor
    ids: Tensor


def _by_type(csc_indices: Tensor, csc_eids: Tensor, dst: Tensor, types: Tensor, num: int) -> _TypedEdges:
    counts = types.bincount(minlength=num)
    if counts.shape[0] != num:
        raise KernelError(f"gqc.typed_spmm: an edge has type {int(types.max())}, and there are matrices for {num}")
    eids = csc_eids.long()
    order = types[eids].argsort(stable=True)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ids = eids[order]
    return _TypedEdges(starts, csc_indices[order], dst[ids], ids)


_remembered_by_type = ByIdentity(_by_type, capacity=16)


def _typed_edges(g: list[Tensor], types: Tensor, num: int) -> _TypedEdges:
    found: _TypedEdges = _remembered_by_type(g[CSC_INDICES], g[CSC_EIDS], g[DST], types, num)
    return found


def _check(name: str, g: list[Tensor], u: Tensor, b: Tensor, types: Tensor) -> None:
    check_rows(name, g, u, "u")
    if u.dim() != 2 or b.dim() != 3 or b.shape[1] != u.shape[1]:
        raise KernelError(
            f"gqc.{name}: rows {list(u.shape)} times matrices {list(b.shape)}: they must be [Ns, K] and [types, K, M]"
        )
    _check_types(name, g, types)


def _check_weights(name: str, g: list[Tensor], e: Tensor | None) -> None:
    if e is not None and (e.shape[0] != num_edges(g) or e.numel() != num_edges(g) or not e.is_floating_point()):
        raise KernelError(
            f"gqc.{name}: weights {e.dtype} {list(e.shape)}: give one floating-point number for each of {num_edges(g)} "
            "edges"
        )


def _in_order(e: Tensor | None, edges: _TypedEdges) -> Tensor | None:
    return None if e is None else float32(e.reshape(-1)).index_select(0, edges.ids)


def _check_bwd_b(name: str, g: list[Tensor], u: Tensor, grad: Tensor, types: Tensor) -> None:
    check_rows(name, g, u, "u")
    check_rows(name, g, grad, "v")
    if u.dim() != 2 or grad.dim() != 2:
        raise KernelError(f"gqc.{name}: rows {list(u.shape)} and {list(grad.shape)}: both must be matrices")
    _check_types(name, g, types)


def _check_types(name: str, g: list[Tensor], types: Tensor) -> None:
    if types.shape != g[SRC].shape or types.is_floating_point() or types.is_complex():
        raise KernelError(
            f"gqc.{name}: types {types.dtype} {list(types.shape)}: give an integer for each of {num_edges(g)} edges"
        )


def _typed_spmm(g: list[Tensor], u: Tensor, b: Tensor, types: Tensor, e: Tensor | None) -> Tensor:
    _check("typed_spmm", g, u, b, types)
    _check_weights("typed_spmm", g, e)
    check_floats("typed_spmm", u, b)
    if kernels.on_gpu(u) or u.dtype is torch.float64:
        return _with_messages(g, u, b, types, e)
    values, matrices = float32(u), b.to(torch.float32)
    out = kernels.empty(values, (num_dst(g), b.shape[2]))
    edges = _typed_edges(g, types, b.shape[0])
    weights = _in_order(e, edges)
    if out.numel():
        kernels.run(
            out,
            "typed_spmm",
            *(is_int64(g), b.shape[0], *_addresses(edges), g[CSC_INDPTR].data_ptr()),
            *(num_dst(g), b.shape[2], b.shape[1]),
            *(values.data_ptr(), matrices.data_ptr(), *matrices.stride(), address(weights), out.data_ptr()),
        )
    return out.to(u.dtype)


def _addresses(edges: _TypedEdges) -> tuple[int, int, int]:
    return edges.starts.data_ptr(), edges.src.data_ptr(), edges.dst.data_ptr()


def _with_messages(g: list[Tensor], u: Tensor, b: Tensor, types: Tensor, e: Tensor | None) -> Tensor:
    messages = torch.ops.gqc.gather_mm(u.index_select(0, g[SRC]), b, types)
    messages = messages if e is None else messages * e.reshape(-1, 1)
    out: Tensor = torch.ops.gqc.spmm(g, "copy_rhs", None, messages)
    return out


def _typed_spmm_fake(g: list[Tensor], u: Tensor, b: Tensor, types: Tensor, e: Tensor | None) -> Tensor:
    return u.new_empty((num_dst(g), b.shape[2]))


def _typed_spmm_bwd_b(g: list[Tensor], u: Tensor, grad: Tensor, types: Tensor, num: int, e: Tensor | None) -> Tensor:
    _check_bwd_b("typed_spmm_bwd_b", g, u, grad, types)
    _check_weights("typed_spmm_bwd_b", g, e)
    check_floats("typed_spmm_bwd_b", u, grad)
    if kernels.on_gpu(u) or u.dtype is torch.float64:
        return _bwd_b_with_rows(g, u, grad, types, num, e)
    values, gradients = float32(u), float32(grad)
    out = kernels.empty(values, (num, u.shape[1], grad.shape[1]))
    edges = _typed_edges(g, types, num)
    weights = _in_order(e, edges)
    if out.numel():
        kernels.run(
            out,
            "typed_spmm_bwd_b",
            *(is_int64(g), num, *_addresses(edges), u.shape[1], grad.shape[1]),
            *(values.data_ptr(), gradients.data_ptr(), address(weights), out.data_ptr()),
        )
    return out.to(u.dtype)


def _bwd_b_with_rows(g: list[Tensor], u: Tensor, grad: Tensor, types: Tensor, num: int, e: Tensor | None) -> Tensor:
    rows, gradients = u.index_select(0, g[SRC]), grad.index_select(0, g[DST])
    gradients = gradients if e is None else gradients * e.reshape(-1, 1)
    out: Tensor = torch.ops.gqc.gather_mm_bwd_b(rows, gradients, types, num)
    return out


def _typed_spmm_bwd_b_fake(
    g: list[Tensor], u: Tensor, grad: Tensor, types: Tensor, num: int | SymInt, e: Tensor | None
) -> Tensor:
    return u.new_empty((num, u.shape[1], grad.shape[1]))


def _qtyped_spmm(
    g: list[Tensor],
    u: Tensor,
    u_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    types: Tensor,
    e: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    _check("qtyped_spmm", g, u, b, types)
    _check_weights("qtyped_spmm", g, e)
    _check_int8("qtyped_spmm", u, b, dtype)
    refuse_gradient("qtyped_spmm", u_scale, b_scale, e)
    if u.shape[1] > MOST_FEATURES:
        raise KernelError(f"gqc.qtyped_spmm: rows of {u.shape[1]} features: at most {MOST_FEATURES} are summed in int8")
    if kernels.on_gpu(u):
        return _scaled(
            _with_messages(g, u.float(), b.float(), types, None if e is None else e.float()), u_scale, b_scale, dtype
        )
    transposed = not b.is_contiguous() and b.transpose(1, 2).is_contiguous()
    u, b = u.contiguous(), b if transposed else b.contiguous()
    out = kernels.empty(u, (num_dst(g), b.shape[2]), dtype)
    if not out.numel():
        return out, torch.zeros(())
    absmax = kernels.new_absmax(u_scale)
    edges = _typed_edges(g, types, b.shape[0])
    weights = _in_order(e, edges)
    kernels.run(
        u,
        "qtyped_spmm",
        *(is_int64(g), b.shape[0], *_addresses(edges), g[CSC_INDPTR].data_ptr()),
        *(num_dst(g), b.shape[2], b.shape[1], u.data_ptr(), pointer(u_scale, torch.float32)),
        *(b.data_ptr(), pointer(b_scale, torch.float32), transposed, address(weights)),
        *(dtype_code(dtype), out.data_ptr(), absmax.data_ptr()),
    )
    return out, absmax


def _check_int8(name: str, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    check_float(name, dtype)
    for operand in (x, y):
        if operand.dtype is not torch.int8:
            raise KernelError(f"gqc.{name} needs int8 values and got {operand.dtype}: quantize them first")


def _scaled(sums: Tensor, scale: Tensor, other: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out = (sums * (scale * other)).to(dtype)
    return out, out.abs().amax().float() if out.numel() else out.new_zeros((), dtype=torch.float32)


def _qtyped_spmm_fake(
    g: list[Tensor],
    u: Tensor,
    u_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    types: Tensor,
    e: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    return u.new_empty((num_dst(g), b.shape[2]), dtype=dtype), u.new_empty((), dtype=torch.float32)


def _qtyped_spmm_bwd_b(
    g: list[Tensor],
    u: Tensor,
    u_scale: Tensor,
    grad: Tensor,
    grad_scale: Tensor,
    types: Tensor,
    num: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    _check_bwd_b("qtyped_spmm_bwd_b", g, u, grad, types)
    _check_int8("qtyped_spmm_bwd_b", u, grad, dtype)
    refuse_gradient("qtyped_spmm_bwd_b", u_scale, grad_scale)
    if kernels.on_gpu(u):
        return _scaled(_bwd_b_with_rows(g, u.float(), grad.float(), types, num, None), u_scale, grad_scale, dtype)
    u, grad = u.contiguous(), grad.contiguous()
    out = kernels.empty(u, (num, u.shape[1], grad.shape[1]), dtype)
    if not out.numel():
        return out, torch.zeros(())
    absmax = kernels.new_absmax(u_scale)
    kernels.run(
        u,
        "qtyped_spmm_bwd_b",
        *(is_int64(g), num, *_addresses(_typed_edges(g, types, num)), u.shape[1], grad.shape[1]),
        *(u.data_ptr(), pointer(u_scale, torch.float32), grad.data_ptr(), pointer(grad_scale, torch.float32)),
        *(dtype_code(dtype), out.data_ptr(), absmax.data_ptr()),
    )
    return out, absmax


def _qtyped_spmm_bwd_b_fake(
    g: list[Tensor],
    u: Tensor,
    u_scale: Tensor,
    grad: Tensor,
    grad_scale: Tensor,
    types: Tensor,
    num: int | SymInt,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    out = u.new_empty((num, u.shape[1], grad.shape[1]), dtype=dtype)
    return out, u.new_empty((), dtype=torch.float32)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, u, b, types, e = inputs
    ctx.save_for_backward(u, b, types, e, *g)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    u, b, types, e, *g = ctx.saved_tensors
    _, needs_u, needs_b, _, needs_e = ctx.needs_input_grad
    grad_u = torch.ops.gqc.typed_spmm(reverse(g), grad, b.transpose(1, 2), types, e) if needs_u else None
    grad_b = torch.ops.gqc.typed_spmm_bwd_b(g, u, grad, types, b.shape[0], e) if needs_b else None
    grad_e = None
    if needs_e:
        messages = torch.ops.gqc.gather_mm(u.index_select(0, g[SRC]), b, types)
        grad_e = (messages * grad.index_select(0, g[DST])).sum(1).view_as(e)
    return [None] * len(g), grad_u, grad_b, None, grad_e


define(
    "typed_spmm(Tensor[] g, Tensor u, Tensor b, Tensor types, Tensor? e) -> Tensor",
    kernel=_typed_spmm,
    fake=_typed_spmm_fake,
)
define(
    "typed_spmm_bwd_b(Tensor[] g, Tensor u, Tensor grad, Tensor types, SymInt num, Tensor? e) -> Tensor",
    kernel=_typed_spmm_bwd_b,
    fake=_typed_spmm_bwd_b_fake,
)
define(
    "qtyped_spmm(Tensor[] g, Tensor u, Tensor u_scale, Tensor b, Tensor b_scale, Tensor types, Tensor? e, "
    "ScalarType dtype) -> (Tensor out, Tensor absmax)",
    kernel=_qtyped_spmm,
    fake=_qtyped_spmm_fake,
)
define(
    "qtyped_spmm_bwd_b(Tensor[] g, Tensor u, Tensor u_scale, Tensor grad, Tensor grad_scale, Tensor types, SymInt num, "
    "ScalarType dtype) -> (Tensor out, Tensor absmax)",
    kernel=_qtyped_spmm_bwd_b,
    fake=_qtyped_spmm_bwd_b_fake,
)
differentiate("typed_spmm", _backward, _save_inputs)
