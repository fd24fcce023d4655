"""SDDMM in full precision: an operation on the ends of each edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.runtime import kernels
from gqc.runtime.features import out_features, reduce_features
from gqc.runtime.ops.edge_gradient import sum_at, sum_of_products_at
from gqc.runtime.ops.feature_layout import OP_CODES, layout_of
from gqc.runtime.ops.graph_arguments import (
    address,
    check_floats,
    check_operands,
    edge_index,
    float32,
    is_int64,
    operands,
    result_dtype,
    written_dtype,
)
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.reference.sddmm import sddmm as reference
from gqc.runtime.relation import num_edges


def _sddmm(
    g: list[Tensor], op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str
) -> Tensor:
    lhs, rhs = operands(op, lhs, rhs)
    check_operands("sddmm", op, g, (lhs, lhs_target), (rhs, rhs_target))
    check_floats("sddmm", lhs, rhs)
    dtype = result_dtype(lhs, rhs)
    if dtype is torch.float64:
        return _float64(g, op, lhs, rhs, lhs_target, rhs_target)
    if lhs is None:
        lhs, lhs_target, rhs, rhs_target = rhs, rhs_target, None, "e"
    lhs, rhs = float32(lhs), None if rhs is None else float32(rhs)
    layout = layout_of(op, lhs, rhs)
    out = kernels.empty(lhs, (num_edges(g), *layout.features), written_dtype(lhs, dtype))
    if out.numel():
        kernels.run(
            out,
            "sddmm",
            *(OP_CODES[layout.op], is_int64(g), num_edges(g), lhs.data_ptr(), edge_index(g, lhs_target)),
            *(address(rhs), edge_index(g, rhs_target), layout, kernels.dtype_code(out.dtype), out.data_ptr()),
        )
    return out.to(dtype)


def _float64(
    g: list[Tensor], op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str
) -> Tensor:
    out = reference(g, op, lhs, rhs, lhs_target, rhs_target)
    return out.clone() if out is lhs or out is rhs else out


def _fake(g: list[Tensor], op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str) -> Tensor:
    lhs, rhs = operands(op, lhs, rhs)
    x = rhs if lhs is None else lhs
    return x.new_empty([num_edges(g), *out_features(op, lhs, rhs)], dtype=result_dtype(lhs, rhs))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, op, lhs, rhs, *ctx.targets = inputs
    lhs, rhs = operands(op, lhs, rhs)
    ctx.op = op
    ctx.lhs_features, ctx.rhs_features = (None if x is None else x.shape[1:] for x in (lhs, rhs))
    products = op in ("mul", "dot", "div")
    keep_lhs = products and rhs.requires_grad
    keep_rhs = op == "div" or (products and lhs.requires_grad)
    ctx.save_for_backward(lhs if keep_lhs else None, rhs if keep_rhs else None, *g)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    lhs, rhs, *g = ctx.saved_tensors
    lhs_target, rhs_target = ctx.targets
    d_lhs = d_rhs = None
    if ctx.lhs_features is not None and ctx.needs_input_grad[2]:
        if ctx.op in ("mul", "dot", "div"):
            factor = 1 / rhs if ctx.op == "div" else rhs
            d_lhs = sum_of_products_at(g, factor, rhs_target, grad, lhs_target, ctx.lhs_features)
        else:
            d_lhs = sum_at(g, reduce_features(grad, ctx.lhs_features), lhs_target)
    if ctx.rhs_features is not None and ctx.needs_input_grad[3]:
        if ctx.op in ("mul", "dot", "div"):
            d_rhs = sum_of_products_at(g, lhs, lhs_target, grad, rhs_target, ctx.rhs_features)
            d_rhs = -d_rhs / (rhs * rhs) if ctx.op == "div" else d_rhs
        else:
            d_rhs = sum_at(g, reduce_features(-grad if ctx.op == "sub" else grad, ctx.rhs_features), rhs_target)
    return [None] * len(g), None, d_lhs, d_rhs, None, None


define(
    "sddmm(Tensor[] g, str op, Tensor? lhs, Tensor? rhs, str lhs_target, str rhs_target) -> Tensor",
    kernel=_sddmm,
    fake=_fake,
)
differentiate("sddmm", _backward, _setup_context)
