"""SPMM in full precision: sum of messages over in-edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.runtime import kernels
from gqc.runtime.features import out_features, reduce_features
from gqc.runtime.float24 import as_rows, is_float24, shape_of, unpack
from gqc.runtime.kernels import dtype_code
from gqc.runtime.ops.edge_gradient import sum_of_products
from gqc.runtime.ops.feature_layout import COPY_FLOAT24, OP_CODES, FeatureLayout, layout_of, layout_of_features
from gqc.runtime.ops.graph_arguments import (
    address,
    check_floats,
    check_operands,
    float32,
    is_int64,
    operands,
    result_dtype,
    row_factors,
)
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.reference.spmm import by_rows
from gqc.runtime.reference.spmm import spmm as reference
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, num_dst, num_edges, reverse


def _spmm(
    g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None, rows: Tensor | None = None, divide: bool = False
) -> Tensor:
    u, e, dtype = float_operands("spmm", g, op, u, e)
    rows = row_factors("spmm", g, rows)
    if dtype is torch.float64:
        return reference(g, op, u, e, rows, divide)
    op, u, e = known_operands(op, u, e)
    layout, arguments = sum_arguments(g, op, u, e)
    out = kernels.empty(g[0], (num_dst(g), *layout.features), dtype)

    def one_kernel() -> Tensor:
        kernels.run(
            out,
            "spmm",
            *(*arguments, layout, address(rows), divide, dtype_code(dtype), out.data_ptr()),
        )
        return out

    if out.numel() and kernels.on_gpu(out):
        from gqc.runtime.cuda.cusparse import fastest_spmm

        def finish(total: Tensor) -> Tensor:
            return total.to(dtype) if rows is None else by_rows(total.to(dtype), rows, divide)

        return fastest_spmm(g, op, u, e, one_kernel, finish, kernels.clock(out))
    return one_kernel() if out.numel() else out


def float_operands(
    name: str, g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None
) -> tuple[Tensor | None, Tensor | None, torch.dtype]:
    """The operands that ``op`` reads, of floats or, where it copies them on a CPU, float24, and the result's dtype.

    Raises:
        KernelError: if one is missing, has other rows than the graph, or is no float.
    """
    u, e = operands(op, u, e)
    check_operands(name, op, g, (u, "u"), (e, "e"))
    narrow = is_float24(u) and op == "copy_lhs"
    if narrow and kernels.on_gpu(g[0]):
        u, narrow = unpack(u), False  # type: ignore[arg-type]
    check_floats(name, None if narrow else u, e)
    return u, e, torch.float32 if narrow else result_dtype(u, e)


def known_operands(op: str, u: Tensor | None, e: Tensor | None) -> tuple[str, Tensor | None, Tensor | None]:
    """An operation that the kernels know, with operands as they read them."""
    if op == "sub":
        op, e = "add", -e
    return op, *(None if x is None else _readable(op, x) for x in (u, e))  # type: ignore[return-value]


def _readable(op: str, x: Tensor) -> Tensor:
    if is_float24(x):
        return as_rows(x)
    return x.contiguous() if _reads_bfloat16(op, x) else float32(x)


def _reads_bfloat16(op: str, x: Tensor) -> bool:
    """Whether kernels read ``x`` as it is."""
    return op.startswith("copy") and x.dtype is torch.bfloat16 and not kernels.on_gpu(x)


def sum_arguments(
    g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None
) -> tuple[FeatureLayout, tuple[int | None, ...]]:
    """How the operands are read, and the first arguments of the kernels: the matrix and the operands."""
    sources, eids = g[CSC_INDICES].data_ptr(), g[CSC_EIDS].data_ptr()
    lhs, lhs_rows, rhs, rhs_rows = (e, eids, None, None) if u is None else (u, sources, e, eids)
    narrow = is_float24(lhs)
    layout = layout_of_features(op, *[tuple(shape_of(lhs)[1:])] * 2) if narrow else layout_of(op, lhs, rhs)
    code = COPY_FLOAT24 if narrow else OP_CODES[op]
    matrix = code, is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr()
    return layout, (*matrix, address(lhs), lhs_rows, address(rhs), rhs_rows)


def _fake(
    g: list[Tensor], op: str, u: Tensor | None, e: Tensor | None, rows: Tensor | None = None, divide: bool = False
) -> Tensor:
    u, e = operands(op, u, e)
    x = e if u is None else u
    if is_float24(u):
        return x.new_empty([num_dst(g), *shape_of(u)[1:]], dtype=torch.float32)  # type: ignore[union-attr, arg-type]
    return x.new_empty([num_dst(g), *out_features(op, u, e)], dtype=result_dtype(u, e))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, op, u, e, rows, divide = inputs
    u, e = operands(op, u, e)
    ctx.op, ctx.divide = op, divide
    ctx.u_features, ctx.e_features = (None if x is None else x.shape[1:] for x in (u, e))
    products, sums = op in ("mul", "div"), rows is not None and rows.requires_grad
    keep_u = sums or (products and e.requires_grad)
    keep_e = sums or op == "div" or (products and u.requires_grad)
    ctx.save_for_backward(u if keep_u else None, e if keep_e else None, rows, *g)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    u, e, rows, *g = ctx.saved_tensors
    d_u = d_e = d_rows = None
    if rows is not None:
        if ctx.needs_input_grad[4]:
            d_rows = _row_gradient(torch.ops.gqc.spmm(g, ctx.op, u, e), grad, rows, ctx.divide)
        grad = by_rows(grad, rows, ctx.divide)
    if ctx.u_features is not None and ctx.needs_input_grad[2]:
        d_u = _source_gradient(g, ctx.op, grad, e, ctx.u_features)
    if ctx.e_features is not None and ctx.needs_input_grad[3]:
        d_e = _edge_gradient(g, ctx.op, grad, u, e, ctx.e_features)
    gradients = ([None] * len(g), None, d_u, d_e, d_rows, None)
    return gradients[: len(ctx.needs_input_grad)]  # torch leaves out arguments that have their defaults


def _row_gradient(total: Tensor, grad: Tensor, rows: Tensor, divide: bool) -> Tensor:
    """Of the factors of the rows of ``total``."""
    d_rows = (total * grad).flatten(1).sum(1) if total.dim() > 1 else total * grad
    return (-d_rows / (rows * rows) if divide else d_rows).to(rows.dtype)


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


define(
    "spmm(Tensor[] g, str op, Tensor? u, Tensor? e, Tensor? rows=None, bool divide=False) -> Tensor",
    kernel=_spmm,
    fake=_fake,
)
differentiate("spmm", _backward, _setup_context)
