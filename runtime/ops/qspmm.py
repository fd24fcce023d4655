"""SPMM on INT8 operands: sum, max and min of messages over in-edges."""

from __future__ import annotations

from typing import NamedTuple

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


class Operand(NamedTuple):
    """Features, the address of the rows of them that entries read, and their scale if they are quantized."""

    data: Tensor | None
    rows: int
    scale: Tensor | None


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
    rows = row_factors("qspmm", g, rows)
    refuse_gradient("qspmm", rows)
    layout, lhs, rhs = sum_operands("qspmm", g, op, u, u_scale, e, e_scale, dtype)
    return _sum(g, op, layout, lhs, rhs, rows, divide, dtype, packed=False)


def sum_operands(
    name: str,
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
) -> tuple[FeatureLayout, Operand, Operand]:
    """What the kernels read of checked operands; the first one is the one that a copy reads.

    Raises:
        KernelError: naming the operand of the op ``name`` that does not fit.
    """
    if op not in ("copy_lhs", "copy_rhs", "mul"):
        raise KernelError(f"gqc.{name}: operation {op!r}: expected copy_lhs, copy_rhs or mul")
    u, e = operands(op, u, e)
    u_scale, e_scale = operands(op, u_scale, e_scale)
    check_operands(name, op, g, (u, "u"), (e, "e"))
    check_quantized(name, (u, u_scale), (e, e_scale), dtype=dtype)
    refuse_gradient(name, u, e)
    u, e = quantized_or_float32(u, u_scale), quantized_or_float32(e, e_scale)
    sources, eids = g[CSC_INDICES].data_ptr(), g[CSC_EIDS].data_ptr()
    lhs, rhs = Operand(u, sources, u_scale), Operand(e, eids, e_scale)
    if u is None:
        lhs, rhs = rhs, lhs
    return layout_of(op, lhs.data, rhs.data), lhs, rhs


def sum_arguments(g: list[Tensor], op: str, lhs: Operand, rhs: Operand) -> tuple[int | None, ...]:
    """The first arguments of the kernels: the matrix and the operands."""
    matrix = OP_CODES[op], is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr()
    return (*matrix, *(x for one in (lhs, rhs) for x in (address(one.data), one.rows, address(one.scale))))


def _sum(
    g: list[Tensor],
    op: str,
    layout: FeatureLayout,
    lhs: Operand,
    rhs: Operand,
    factors: Tensor | None,
    divide: bool,
    dtype: torch.dtype,
    packed: bool,
) -> tuple[Tensor, Tensor]:
    out = kernels.empty(g[0], (num_dst(g), *layout.features), torch.float32 if dtype is torch.float64 else dtype)
    absmax = kernels.new_absmax(out) if out.numel() else out.new_zeros((), dtype=torch.float32)
    if out.numel():
        kernels.run(
            out,
            "qspmm",
            *sum_arguments(g, op, lhs, rhs),
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
    lhs, rhs = Operand(u, g[CSC_INDICES].data_ptr(), u_scale), Operand(e, g[CSC_EIDS].data_ptr(), None)
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
