"""SDDMM on INT8 operands."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native
from gqc.runtime.features import out_features
from gqc.runtime.ops.feature_layout import OP_CODES, layout_of
from gqc.runtime.ops.graph_arguments import (
    address,
    check_operands,
    check_quantized,
    edge_index,
    is_int64,
    quantized_or_float32,
)
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
    if op not in ("add", "sub", "mul", "div", "dot"):
        raise KernelError(f"gqc.qsddmm: operation {op!r}: expected add, sub, mul, div or dot")
    check_operands("qsddmm", op, g, (lhs, lhs_target), (rhs, rhs_target))
    check_quantized("qsddmm", (lhs, lhs_scale), (rhs, rhs_scale), dtype=dtype)
    refuse_gradient("qsddmm", lhs, rhs)
    lhs, rhs = quantized_or_float32(lhs, lhs_scale), quantized_or_float32(rhs, rhs_scale)
    layout = layout_of(op, lhs, rhs)
    out = lhs.new_empty((num_edges(g), *layout.features), dtype=torch.float32)
    if out.numel():
        native.run(
            "qsddmm",
            *(OP_CODES[layout.op], is_int64(g), num_edges(g)),
            *(lhs.data_ptr(), edge_index(g, lhs_target), address(lhs_scale)),
            *(rhs.data_ptr(), edge_index(g, rhs_target), address(rhs_scale)),
            *(layout.address, out.data_ptr()),
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


define(
    "qsddmm(Tensor[] g, str op, Tensor lhs, Tensor? lhs_scale, Tensor rhs, Tensor? rhs_scale, str lhs_target, "
    "str rhs_target, ScalarType dtype) -> Tensor",
    cpu=_qsddmm,
    fake=_fake,
)
