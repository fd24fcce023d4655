"""SPMM in full precision: sum of messages over in-edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.runtime import kernels
from gqc.runtime.features import out_features, reduce_features
from gqc.runtime.ops.edge_gradient import sum_of_products
from gqc.runtime.ops.feature_layout import OP_CODES, layout_of
from gqc.runtime.ops.graph_arguments import (
    address,
    check_floats,
    check_operands,
    float32,
    is_int64,
    operands,
    result_dtype,
)
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.reference.spmm import spmm as reference
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, num_dst, num_edges, reverse


def _spmm(g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    u, e = operands(op, u, e)
    check_operands("spmm", op, g, (u, "u"), (e, "e"))
    check_floats("spmm", u, e)
    dtype = result_dtype(u, e)
    if dtype is torch.float64:
        return reference(g, op, u, e)
    if op == "sub":
        op, e = "add", -e
    u, e = (None if x is None else float32(x) for x in (u, e))
    sources, eids = g[CSC_INDICES].data_ptr(), g[CSC_EIDS].data_ptr()
    lhs, lhs_rows, rhs, rhs_rows = (e, eids, None, None) if u is None else (u, sources, e, eids)
    layout = layout_of(op, lhs, rhs)
    out = kernels.empty(lhs, (num_dst(g), *layout.features))

    def one_kernel() -> Tensor:
        kernels.run(
            out,
            "spmm",
            *(OP_CODES[op], is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr()),
            *(lhs.data_ptr(), lhs_rows, address(rhs), rhs_rows, layout, out.data_ptr()),
        )
        return out

    if out.numel() and kernels.on_gpu(out):
        from gqc.runtime.cuda.cusparse import fastest_spmm

        out = fastest_spmm(g, op, u, e, one_kernel, kernels.clock(out))
    elif out.numel():
        one_kernel()
    return out if dtype is torch.float32 else out.to(dtype)


def _fake(g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    u, e = operands(op, u, e)
    x = e if u is None else u
    return x.new_empty([num_dst(g), *out_features(op, u, e)], dtype=result_dtype(u, e))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, op, u, e = inputs
    u, e = operands(op, u, e)
    ctx.op = op
    ctx.u_features, ctx.e_features = (None if x is None else x.shape[1:] for x in (u, e))
    products = op in ("mul", "div")
    keep_u = products and e.requires_grad
    keep_e = op == "div" or (products and u.requires_grad)
    ctx.save_for_backward(u if keep_u else None, e if keep_e else None, *g)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    u, e, *g = ctx.saved_tensors
    d_u = d_e = None
    if ctx.u_features is not None and ctx.needs_input_grad[2]:
        d_u = _source_gradient(g, ctx.op, grad, e, ctx.u_features)
    if ctx.e_features is not None and ctx.needs_input_grad[3]:
        d_e = _edge_gradient(g, ctx.op, grad, u, e, ctx.e_features)
    return [None] * len(g), None, d_u, d_e


def _source_gradient(g: list[Tensor], op: str, grad: Tensor, e: Tensor | None, features: torch.Size) -> Tensor:
    spmm = torch.ops.gqc.spmm
    if op in ("mul", "div"):
        return reduce_features(spmm(reverse(g), op, grad, e), features)
    return spmm(reverse(g), "copy_lhs", reduce_features(grad, features), None)


def _edge_gradient(
    g: list[Tensor], op: str, grad: Tensor, u: Tensor | None, e: Tensor | None, features: torch.Size
) -> Tensor:
    if op in ("mul", "div"):
        d_e = sum_of_products(g, u, grad, "u", "v", features)
        return d_e if op == "mul" else -d_e / (e * e)
    grad = reduce_features(grad, features)
    return torch.ops.gqc.sddmm(g, "copy_rhs", None, -grad if op == "sub" else grad, "u", "v")


define("spmm(Tensor[] g, str op, Tensor? u, Tensor? e) -> Tensor", kernel=_spmm, fake=_fake)
differentiate("spmm", _backward, _setup_context)
