"""SPMM with max or min in full precision, and the ops of its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.features import COPY, out_features, reduce_features
from gqc.runtime.ops.edge_gradient import sum_at, sum_of_products
from gqc.runtime.ops.graph_arguments import (
    address,
    check_floats,
    check_operands,
    check_reduce,
    check_rows,
    float32,
    is_int64,
    operands,
    result_dtype,
)
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.reference import spmm_cmp as reference
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, SRC, num_dst, num_edges, num_src


def _spmm_cmp(g: list[Tensor], op: str, reduce: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor, Tensor]:
    u, e = operands(op, u, e)
    check_reduce("spmm_cmp", reduce)
    check_operands("spmm_cmp", op, g, (u, "u"), (e, "e"))
    check_floats("spmm_cmp", u, e)
    dtype = result_dtype(u, e)
    if dtype is torch.float64:
        return reference.spmm_cmp(g, op, reduce, u, e)
    if op not in COPY:
        op, e = "copy_rhs", torch.ops.gqc.sddmm(g, op, u, e, "u", "e")
    x, rows = (float32(u), g[CSC_INDICES]) if op == "copy_lhs" else (float32(e), g[CSC_EIDS])
    out, arg = best_rows(g, reduce, x, rows, None)
    return out if dtype is torch.float32 else out.to(dtype), arg


def best_rows(g: list[Tensor], reduce: str, x: Tensor, rows: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the kernel on contiguous ``x``, float32 or int8 with a scale, of which CSC position p reads ``rows[p]``."""
    out = kernels.empty(x, (num_dst(g), *x.shape[1:]), torch.float32)
    arg = kernels.empty(out, out.shape, torch.int64)
    if out.numel():
        kernels.run(
            out,
            "spmm_cmp",
            *(reduce == "max", is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr(), g[CSC_EIDS].data_ptr()),
            *(x.data_ptr(), rows.data_ptr(), address(scale), out[0].numel(), out.data_ptr(), arg.data_ptr()),
        )
    return out, arg


def _fake(g: list[Tensor], op: str, reduce: str, u: Tensor | None, e: Tensor | None) -> tuple[Tensor, Tensor]:
    u, e = operands(op, u, e)
    x = e if u is None else u
    shape = [num_dst(g), *out_features(op, u, e)]
    return x.new_empty(shape, dtype=result_dtype(u, e)), x.new_empty(shape, dtype=torch.int64)


def _check_gradient(name: str, g: list[Tensor], arg: Tensor, grad: Tensor) -> None:
    check_rows(name, g, grad, "v")
    check_floats(name, grad)
    if arg.shape != grad.shape or arg.dtype is not torch.int64:
        raise KernelError(
            f"gqc.{name}: arg is {arg.dtype} of shape {list(arg.shape)}: expected int64 of the gradient's shape "
            f"{list(grad.shape)}, as spmm_cmp returns it"
        )


def _spmm_cmp_bwd(g: list[Tensor], arg: Tensor, grad: Tensor) -> Tensor:
    _check_gradient("spmm_cmp_bwd", g, arg, grad)
    if grad.dtype is torch.float64:
        return reference.spmm_cmp_bwd(g, arg, grad)
    values, arg = float32(grad), arg.contiguous()
    out = kernels.empty(values, (num_edges(g), *grad.shape[1:]))
    if out.numel():
        kernels.run(
            out,
            "spmm_cmp_bwd",
            *(is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr(), g[CSC_EIDS].data_ptr()),
            *(arg.data_ptr(), values.data_ptr(), out[0].numel(), out.data_ptr()),
        )
    return out.to(grad.dtype)


def _spmm_cmp_bwd_src(g: list[Tensor], arg: Tensor, grad: Tensor) -> Tensor:
    _check_gradient("spmm_cmp_bwd_src", g, arg, grad)
    if grad.dtype is torch.float64:
        return reference.spmm_cmp_bwd_src(g, arg, grad)
    if kernels.on_gpu(grad) and torch.are_deterministic_algorithms_enabled():
        # The kernel adds by atomics, in any order. The sum over each source's edges has one order, but needs them all.
        return sum_at(g, torch.ops.gqc.spmm_cmp_bwd(g, arg, grad), "u")
    values, arg = float32(grad), arg.contiguous()
    out = kernels.empty(values, (num_src(g), *grad.shape[1:]))
    if out.numel():
        kernels.run(
            out,
            "spmm_cmp_bwd_src",
            *(is_int64(g), num_dst(g), num_src(g), g[SRC].data_ptr()),
            *(arg.data_ptr(), values.data_ptr(), out[0].numel(), out.data_ptr()),
        )
    return out.to(grad.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    g, op, _, u, e = inputs
    u, e = operands(op, u, e)
    ctx.mark_non_differentiable(output[1])
    ctx.op = op
    ctx.u_features, ctx.e_features = (None if x is None else x.shape[1:] for x in (u, e))
    products = op in ("mul", "div")
    keep_u = products and e.requires_grad
    keep_e = op == "div" or (products and u.requires_grad)
    ctx.save_for_backward(output[1], u if keep_u else None, e if keep_e else None, *g)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    arg, u, e, *g = ctx.saved_tensors
    op, d_u, d_e = ctx.op, None, None
    if ctx.u_features is not None and ctx.needs_input_grad[3]:
        if op in ("mul", "div"):
            factor = 1 / e if op == "div" else e
            d_message = torch.ops.gqc.spmm_cmp_bwd(g, arg, grad)
            d_u = sum_at(g, sum_of_products(g, factor, d_message, "e", "e", ctx.u_features), "u")
        else:
            d_u = reduce_features(torch.ops.gqc.spmm_cmp_bwd_src(g, arg, grad), ctx.u_features)
    if ctx.e_features is not None and ctx.needs_input_grad[4]:
        d_message = torch.ops.gqc.spmm_cmp_bwd(g, arg, -grad if op == "sub" else grad)
        if op in ("mul", "div"):
            d_e = sum_of_products(g, u, d_message, "u", "e", ctx.e_features)
            d_e = -d_e / (e * e) if op == "div" else d_e
        else:
            d_e = reduce_features(d_message, ctx.e_features)
    return [None] * len(g), None, None, d_u, d_e


define(
    "spmm_cmp(Tensor[] g, str op, str reduce, Tensor? u, Tensor? e) -> (Tensor out, Tensor arg)",
    kernel=_spmm_cmp,
    fake=_fake,
)
define(
    "spmm_cmp_bwd(Tensor[] g, Tensor arg, Tensor grad) -> Tensor",
    kernel=_spmm_cmp_bwd,
    fake=lambda g, arg, grad: grad.new_empty([num_edges(g), *grad.shape[1:]]),
)
define(
    "spmm_cmp_bwd_src(Tensor[] g, Tensor arg, Tensor grad) -> Tensor",
    kernel=_spmm_cmp_bwd_src,
    fake=lambda g, arg, grad: grad.new_empty([num_src(g), *grad.shape[1:]]),
)
differentiate("spmm_cmp", _backward, _setup_context)
