"""SDDMM on INT8 operands."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.features import out_features
from gqc.runtime.ops.feature_layout import OP_CODES, FeatureLayout, layout_of, layout_of_features
from gqc.runtime.ops.graph_arguments import (
    address,
    check_operands,
    check_output,
    check_quantized,
    edge_index,
    is_int64,
    quantized_or_float32,
    written_dtype,
)
from gqc.runtime.ops.int4 import graph_operand, unpacked_like
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.relation import num_edges


def _qsddmm(
    g: list[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    _check_op("qsddmm", op)
    check_operands("qsddmm", op, g, (lhs, lhs_target), (rhs, rhs_target))
    check_quantized("qsddmm", (lhs, lhs_scale), (rhs, rhs_scale), dtype=dtype)
    refuse_gradient("qsddmm", lhs, rhs)
    lhs, rhs = quantized_or_float32(lhs, lhs_scale), quantized_or_float32(rhs, rhs_scale)
    ends = (lhs, lhs_scale, lhs_target), (rhs, rhs_scale, rhs_target)
    return _edges(g, layout_of(op, lhs, rhs), *ends, dtype, packed=False)


def _check_op(name: str, op: str) -> None:
    if op not in ("add", "sub", "mul", "div", "dot"):
        raise KernelError(f"gqc.{name}: operation {op!r}: expected add, sub, mul, div or dot")


def _edges(
    g: list[Tensor],
    layout: FeatureLayout,
    lhs: tuple[Tensor, Tensor | None, str],
    rhs: tuple[Tensor, Tensor | None, str],
    dtype: torch.dtype,
    packed: bool,
) -> Tensor:
    """Run the kernel on operands, their scales and targets."""
    if layout.op == "div" and not kernels.on_gpu(lhs[0]):  # too rare for kernels of the CPU
        values = (x if s is None else torch.ops.gqc.dequantize(x, s, torch.float32) for x, s, _ in (lhs, rhs))
        return torch.ops.gqc.sddmm(g, "div", *values, lhs[2], rhs[2]).to(dtype)
    out = kernels.empty(lhs[0], (num_edges(g), *layout.features), written_dtype(lhs[0], dtype))
    if out.numel():
        kernels.run(
            out,
            "qsddmm",
            *(OP_CODES[layout.op], is_int64(g), num_edges(g)),
            *(lhs[0].data_ptr(), edge_index(g, lhs[2]), address(lhs[1])),
            *(rhs[0].data_ptr(), edge_index(g, rhs[2]), address(rhs[1])),
            *(packed, layout, kernels.dtype_code(out.dtype), out.data_ptr()),
        )
    return out.to(dtype)


def _fake(
    g: list[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    return lhs.new_empty([num_edges(g), *out_features(op, lhs, rhs)], dtype=dtype)


def _qsddmm_int4(
    g: list[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    lhs_features: list[int] | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    rhs_features: list[int] | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    _check_op("qsddmm_int4", op)
    check_operands("qsddmm_int4", op, g, (lhs, lhs_target), (rhs, rhs_target))
    check_output("qsddmm_int4", dtype)
    refuse_gradient("qsddmm_int4", lhs, rhs)
    lhs, lhs_shape = graph_operand("qsddmm_int4", lhs, lhs_scale, lhs_features)
    rhs, rhs_shape = graph_operand("qsddmm_int4", rhs, rhs_scale, rhs_features)
    if lhs_scale is None and rhs_scale is None:
        raise KernelError("gqc.qsddmm_int4: no operand has a scale: use the full-precision op instead")
    layout = layout_of_features(op, lhs_shape, rhs_shape)
    ends = (lhs, lhs_scale, lhs_target), (rhs, rhs_scale, rhs_target)
    return _edges(g, layout, *ends, dtype, packed=kernels.on_gpu(lhs))


def _int4_fake(
    g: list[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    lhs_features: list[int] | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    rhs_features: list[int] | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    lhs = lhs if lhs_features is None else unpacked_like(lhs, lhs_features)
    rhs = rhs if rhs_features is None else unpacked_like(rhs, rhs_features)
    return _fake(g, op, lhs, lhs_scale, rhs, rhs_scale, lhs_target, rhs_target, dtype)


define(
    "qsddmm(Tensor[] g, str op, Tensor lhs, Tensor? lhs_scale, Tensor rhs, Tensor? rhs_scale, str lhs_target, "
    "str rhs_target, ScalarType dtype) -> Tensor",
    kernel=_qsddmm,
    fake=_fake,
)
define(
    "qsddmm_int4(Tensor[] g, str op, Tensor lhs, Tensor? lhs_scale, SymInt[]? lhs_features, Tensor rhs, "
    "Tensor? rhs_scale, SymInt[]? rhs_features, str lhs_target, str rhs_target, ScalarType dtype) -> Tensor",
    kernel=_qsddmm_int4,
    fake=_int4_fake,
)
