"""Cross entropy of some rows of logits, without a copy of these rows or their log-probabilities.

The forward reads the logits once and saves nothing but the number of labels. The backward computes the softmax of a row
again while it is in the cache, which costs less than to read it, and writes the gradient of all rows once. In rows
whose label is ignored the gradient is 0 even if logits are NaN or Inf there, where torch's is NaN. On a GPU torch's ops
compute it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code
from gqc.runtime.ops.library import define, differentiate
from gqc.runtime.ops.quantize import check_float
from gqc.runtime.reference import cross_entropy as reference

REDUCTIONS = ("none", "mean", "sum")
"""As torch numbers them."""


def _check(op: str, logits: Tensor, labels: Tensor, rows: Tensor | None, reduction: str) -> None:
    check_float(op, logits.dtype)
    if reduction not in REDUCTIONS:
        raise KernelError(f"gqc.{op} knows the reductions {', '.join(REDUCTIONS)} and got {reduction!r}")
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise KernelError(f"gqc.{op} takes logits [N, C] of at least one class and got {list(logits.shape)}")
    for name, given in (("labels", labels), ("rows", rows)):
        if given is not None and (given.dim() != 1 or given.dtype is not torch.int64):
            raise KernelError(f"gqc.{op} takes int64 {name} [S] and got {given.dtype} {list(given.shape)}")


def _check_sizes(op: str, labels: Tensor, rows: int) -> None:
    if labels.shape[0] != rows:
        raise KernelError(f"gqc.{op} got {labels.shape[0]} labels for {rows} rows: give one label a row")


def _cross_entropy(
    logits: Tensor, labels: Tensor, rows: Tensor | None, reduction: str, ignore_index: int
) -> tuple[Tensor, Tensor]:
    _check("cross_entropy", logits, labels, rows, reduction)
    _check_sizes("cross_entropy", labels, (logits if rows is None else rows).shape[0])
    if kernels.on_gpu(logits):
        return reference.cross_entropy(logits, labels, rows, reduction, ignore_index)
    logits, labels, rows = logits.contiguous(), labels.contiguous(), None if rows is None else rows.contiguous()
    loss = kernels.empty(logits, labels.shape if reduction == "none" else (), torch.float32)
    counted = kernels.empty(logits, (), torch.float32)
    kernels.run(
        logits,
        "cross_entropy",
        *(logits.data_ptr(), dtype_code(logits.dtype), *logits.shape),
        *(0 if rows is None else rows.data_ptr(), labels.data_ptr(), labels.shape[0]),
        *(REDUCTIONS.index(reduction), ignore_index, loss.data_ptr(), counted.data_ptr()),
    )
    return loss, counted


def _cross_entropy_fake(
    logits: Tensor, labels: Tensor, rows: Tensor | None, reduction: str, ignore_index: int
) -> tuple[Tensor, Tensor]:
    _check("cross_entropy", logits, labels, rows, reduction)
    shape = labels.shape if reduction == "none" else ()
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty((), dtype=torch.float32)


def _cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    rows: Tensor | None,
    counted: Tensor,
    reduction: str,
    ignore_index: int,
    scattered: int | None = None,
) -> Tensor:
    _check("cross_entropy_backward", logits, labels, rows, reduction)
    gathered = rows is not None and scattered is not None
    _check_sizes("cross_entropy_backward", labels, (logits if rows is None else rows).shape[0])
    if gathered:
        _check_sizes("cross_entropy_backward", labels, logits.shape[0])
    shape = labels.shape if reduction == "none" else ()
    if grad.shape != shape or counted.dtype is not torch.float32 or counted.dim():
        raise KernelError(
            f"gqc.cross_entropy_backward takes the gradient of the loss, {list(shape)}, and a float32 count of labels, "
            f"and got {list(grad.shape)} and {counted.dtype} {list(counted.shape)}"
        )
    if kernels.on_gpu(logits):
        options = (counted, reduction, ignore_index, scattered)
        return reference.cross_entropy_backward(grad, logits, labels, rows, *options)
    grad, logits, labels = grad.float().contiguous(), logits.contiguous(), labels.contiguous()
    rows = None if rows is None else rows.contiguous()
    gradient = kernels.empty(logits, (logits.shape[0] if scattered is None else scattered, logits.shape[1]))
    kernels.run(
        logits,
        "cross_entropy_backward",
        *(grad.data_ptr(), logits.data_ptr(), dtype_code(logits.dtype), *gradient.shape),
        *(0 if rows is None else rows.data_ptr(), labels.data_ptr(), labels.shape[0], gathered),
        *(REDUCTIONS.index(reduction), ignore_index, counted.data_ptr(), gradient.data_ptr()),
    )
    return gradient


def _cross_entropy_backward_fake(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    rows: Tensor | None,
    counted: Tensor,
    reduction: str,
    ignore_index: int,
    scattered: int | None = None,
) -> Tensor:
    _check("cross_entropy_backward", logits, labels, rows, reduction)
    return logits.new_empty((logits.shape[0] if scattered is None else scattered, logits.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.options = inputs[3:]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    logits, labels, rows, counted = ctx.saved_tensors
    gradient = torch.ops.gqc.cross_entropy_backward(grad, logits, labels, rows, counted, *ctx.options)
    return gradient, None, None, None, None


define(
    "cross_entropy(Tensor logits, Tensor labels, Tensor? rows, str reduction, int ignore_index) "
    "-> (Tensor loss, Tensor counted)",
    kernel=_cross_entropy,
    fake=_cross_entropy_fake,
)
define(
    "cross_entropy_backward(Tensor grad, Tensor logits, Tensor labels, Tensor? rows, Tensor counted, str reduction, "
    "int ignore_index, SymInt? scattered=None) -> Tensor",
    kernel=_cross_entropy_backward,
    fake=_cross_entropy_backward_fake,
)
differentiate("cross_entropy", _backward, _setup_context)
