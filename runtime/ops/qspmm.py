"""SPMM on INT8 operands: sum, max and min of messages over in-edges."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.features import out_features
from gqc.runtime.kernels import dtype_code
from gqc.runtime.ops.feature_layout import OP_CODES, FeatureLayout, layout_of, layout_of_features
from gqc.runtime.ops.graph_arguments import (
    address,
    check_operands,
    check_output,
    check_quantized,
    check_reduce,
    is_int64,
    operands,
    quantized_or_float32,
    row_factors,
)
from gqc.runtime.ops.int4 import graph_operand, unpacked_like
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.spmm_cmp import best_rows
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, num_dst, num_edges


def _qspmm(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
    rows: Tensor | None = None,
    divide: bool = False,
) -> tuple[Tensor, Tensor]:
    if op not in ("copy_lhs", "copy_rhs", "mul"):
        raise KernelError(f"gqc.qspmm: operation {op!r}: expected copy_lhs, copy_rhs or mul")
    u, e = operands(op, u, e)
    u_scale, e_scale = operands(op, u_scale, e_scale)
    check_operands("qspmm", op, g, (u, "u"), (e, "e"))
    check_quantized("qspmm", (u, u_scale), (e, e_scale), dtype=dtype)
    rows = row_factors("qspmm", g, rows)
    refuse_gradient("qspmm", u, e, rows)
    u, e = quantized_or_float32(u, u_scale), quantized_or_float32(e, e_scale)
    sources, eids = g[CSC_INDICES].data_ptr(), g[CSC_EIDS].data_ptr()
    lhs, rhs = (u, sources, u_scale), (e, eids, e_scale)
    if u is None:
        lhs, rhs = rhs, lhs
    return _sum(g, op, layout_of(op, lhs[0], rhs[0]), lhs, rhs, rows, divide, dtype, packed=False)


def _sum(
    g: list[Tensor],
    op: str,
    layout: FeatureLayout,
    lhs: tuple[Tensor | None, int, Tensor | None],
    rhs: tuple[Tensor | None, int, Tensor | None],
    factors: Tensor | None,
    divide: bool,
    dtype: torch.dtype,
    packed: bool,
) -> tuple[Tensor, Tensor]:
    """Run the kernel on operands, the addresses of the rows that entries read, and scales."""
    out = kernels.empty(g[0], (num_dst(g), *layout.features), torch.float32 if dtype is torch.float64 else dtype)
    absmax = kernels.new_absmax(out) if out.numel() else out.new_zeros((), dtype=torch.float32)
    if out.numel():
        kernels.run(
            out,
            "qspmm",
            *(OP_CODES[op], is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr()),
            *(address(lhs[0]), lhs[1], address(lhs[2]), address(rhs[0]), rhs[1], address(rhs[2])),
            *(packed, layout, address(factors), divide, dtype_code(out.dtype), out.data_ptr(), absmax.data_ptr()),
        )
    return out.to(dtype), absmax


def _qspmm_fake(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
    rows: Tensor | None = None,
    divide: bool = False,
) -> tuple[Tensor, Tensor]:
    u, e = operands(op, u, e)
    x = e if u is None else u
    out = x.new_empty([num_dst(g), *out_features(op, u, e)], dtype=dtype)
    return out, x.new_empty((), dtype=torch.float32)


def _qspmm_cmp(g: list[Tensor], reduce: str, u: Tensor, u_scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    check_reduce("qspmm_cmp", reduce)
    check_operands("qspmm_cmp", "copy_lhs", g, (u, "u"), (None, "e"))
    check_quantized("qspmm_cmp", (u, u_scale), dtype=dtype)
    out, arg = best_rows(g, reduce, u.contiguous(), g[CSC_INDICES], u_scale)
    return out.to(dtype), arg


def _qspmm_cmp_fake(
    g: list[Tensor], reduce: str, u: Tensor, u_scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = [num_dst(g), *u.shape[1:]]
    return u.new_empty(shape, dtype=dtype), u.new_empty(shape, dtype=torch.int64)


def _qspmm_int4(
    g: list[Tensor],
    op: str,
    u: Tensor,
    u_scale: Tensor,
    u_features: list[int],
    e: Tensor | None,
    dtype: torch.dtype,
    rows: Tensor | None = None,
    divide: bool = False,
) -> tuple[Tensor, Tensor]:
    if op not in ("copy_lhs", "mul"):
        raise KernelError(f"gqc.qspmm_int4: operation {op!r}: expected copy_lhs or mul")
    _, e = operands(op, u, e)
    check_operands("qspmm_int4", op, g, (u, "u"), (e, "e"))
    check_output("qspmm_int4", dtype)
    rows = row_factors("qspmm_int4", g, rows)
    refuse_gradient("qspmm_int4", u, e, rows)
    u, features = graph_operand("qspmm_int4", u, u_scale, u_features)
    if e is not None:
        e, edge_features = graph_operand("qspmm_int4", e, None, None)
    layout = layout_of_features(op, features, features if e is None else edge_features)
    lhs, rhs = (u, g[CSC_INDICES].data_ptr(), u_scale), (e, g[CSC_EIDS].data_ptr(), None)
    return _sum(g, op, layout, lhs, rhs, rows, divide, dtype, packed=kernels.on_gpu(u))


def _qspmm_int4_fake(
    g: list[Tensor],
    op: str,
    u: Tensor,
    u_scale: Tensor,
    u_features: list[int],
    e: Tensor | None,
    dtype: torch.dtype,
    rows: Tensor | None = None,
    divide: bool = False,
) -> tuple[Tensor, Tensor]:
    return _qspmm_fake(g, op, unpacked_like(u, u_features), u_scale, e, None, dtype)


define(
    "qspmm(Tensor[] g, str op, Tensor? u, Tensor? u_scale, Tensor? e, Tensor? e_scale, ScalarType dtype, "
    "Tensor? rows=None, bool divide=False) "
    "-> (Tensor out, Tensor absmax)",
    kernel=_qspmm,
    fake=_qspmm_fake,
)
define(
    "qspmm_cmp(Tensor[] g, str reduce, Tensor u, Tensor u_scale, ScalarType dtype) -> (Tensor out, Tensor arg)",
    kernel=_qspmm_cmp,
    fake=_qspmm_cmp_fake,
)
define(
    "qspmm_int4(Tensor[] g, str op, Tensor u, Tensor u_scale, SymInt[] u_features, Tensor? e, ScalarType dtype, "
    "Tensor? rows=None, bool divide=False) "
    "-> (Tensor out, Tensor absmax)",
    kernel=_qspmm_int4,
    fake=_qspmm_int4_fake,
)
