"""Edge softmax in full precision: over the in-edges of each destination."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.ops.graph_arguments import check_floats, check_rows, float32, is_int64
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.reference import edge_softmax as reference
from gqc.runtime.relation import CSC_EIDS, CSC_INDPTR, num_dst, num_edges


def _edge_softmax(g: list[Tensor], logits: Tensor) -> Tensor:
    check_rows("edge_softmax", g, logits, "e")
    check_floats("edge_softmax", logits)
    if logits.dtype is torch.float64:
        return reference.edge_softmax(g, logits)
    values = float32(logits)
    out = kernels.empty(values, values.shape)
    if out.numel():
        kernels.run(
            values,
            "edge_softmax",
            *(is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr(), g[CSC_EIDS].data_ptr()),
            *(values.data_ptr(), values[0].numel(), out.data_ptr()),
        )
    return out.to(logits.dtype)


def _edge_softmax_bwd(g: list[Tensor], out: Tensor, grad: Tensor) -> Tensor:
    check_rows("edge_softmax_bwd", g, out, "e")
    check_floats("edge_softmax_bwd", out, grad)
    if out.shape != grad.shape:
        raise KernelError(
            f"gqc.edge_softmax_bwd: out has shape {list(out.shape)} and grad {list(grad.shape)}: they must be equal"
        )
    if out.dtype is torch.float64:
        return reference.edge_softmax_bwd(g, out, grad)
    weights, gradient = float32(out), float32(grad)
    result = kernels.empty(weights, weights.shape)
    if result.numel():
        kernels.run(
            weights,
            "edge_softmax_bwd",
            *(is_int64(g), num_dst(g), num_edges(g), g[CSC_INDPTR].data_ptr(), g[CSC_EIDS].data_ptr()),
            *(weights.data_ptr(), gradient.data_ptr(), weights[0].numel(), result.data_ptr()),
        )
    return result.to(out.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[0])


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    out, *g = ctx.saved_tensors
    return [None] * len(g), torch.ops.gqc.edge_softmax_bwd(g, out, grad)


define(
    "edge_softmax(Tensor[] g, Tensor logits) -> Tensor",
    kernel=_edge_softmax,
    fake=lambda g, logits: logits.new_empty(logits.shape),
)
define(
    "edge_softmax_bwd(Tensor[] g, Tensor out, Tensor grad) -> Tensor",
    kernel=_edge_softmax_bwd,
    fake=lambda g, out, grad: out.new_empty(out.shape),
)
differentiate("edge_softmax", _backward, _setup_context)
