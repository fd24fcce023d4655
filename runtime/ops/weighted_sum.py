"""Weighted sums of a few rows each, as of the neighbours that an attention weighs, without their product in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt, Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.reference import weighted_sum as reference

_INDEX_TYPES = (torch.int32, torch.int64)


def _weighted_sum(weights: Tensor, x: Tensor, index: Tensor | None = None) -> Tensor:
    _check("weighted_sum", index, weights, x)
    fits = x.shape[:-1] == weights.shape if index is None else x.dim() == 2 and index.shape == weights.shape
    if weights.dim() == 0 or not fits:
        raise KernelError(
            f"gqc.weighted_sum takes weights [*, K] and x [*, K, D], or an index [*, K] of rows of x [N, D], and got "
            f"{_shape(weights)}, {_shape(x)} and {_shape(index)}"
        )
    if kernels.on_gpu(x) or not _is_float32(weights, x):
        return reference.weighted_sum(weights, x, index)
    *lead, terms = weights.shape
    out = kernels.empty(x, (*lead, x.shape[-1]))
    if out.numel():
        weights, x, index = weights.contiguous(), x.contiguous(), None if index is None else index.contiguous()
        at = (pointer(weights, torch.float32), pointer(x, torch.float32))
        numbers = (0, None) if index is None else _numbers(index)
        size = (x.shape[0], out.numel() // x.shape[-1], terms, x.shape[-1])
        kernels.run(x, "weighted_sum", *at, *numbers, *size, out.data_ptr())
    return out


def _weighted_sum_bwd_weights(table: Tensor, index: Tensor, grad: Tensor) -> Tensor:
    _check("weighted_sum_bwd_weights", index, table, grad)
    if table.dim() != 2 or index.dim() == 0 or grad.shape != (*index.shape[:-1], table.shape[1]):
        raise KernelError(
            f"gqc.weighted_sum_bwd_weights takes a table [N, D], an index [*, K] and a gradient [*, D], and got "
            f"{_shape(table)}, {_shape(index)} and {_shape(grad)}"
        )
    if kernels.on_gpu(table) or not _is_float32(table, grad):
        return reference.weighted_sum_bwd_weights(table, index, grad)
    out = kernels.empty(table, index.shape)
    if out.numel():
        table, index, grad = table.contiguous(), index.contiguous(), grad.contiguous()
        size = (table.shape[0], out.numel() // index.shape[-1], index.shape[-1], table.shape[1])
        at = (pointer(grad, torch.float32), out.data_ptr())
        kernels.run(table, "weighted_sum_bwd_weights", pointer(table, torch.float32), *_numbers(index), *size, *at)
    return out


def _add_rows(grad: Tensor, index: Tensor, num: int, weights: Tensor | None = None) -> Tensor:
    _check("add_rows", index, *(grad, grad if weights is None else weights))
    lead = index.shape if weights is None else index.shape[:-1]
    if grad.shape[:-1] != lead or grad.dim() == 0 or (weights is not None and weights.shape != index.shape):
        raise KernelError(
            f"gqc.add_rows takes a gradient [*, D] and an index [*], or an index and weights [*, K], and got "
            f"{_shape(grad)}, {_shape(index)} and {_shape(weights)}"
        )
    if kernels.on_gpu(grad) or not _is_float32(grad):
        return reference.add_rows(grad, index, num, weights)
    out = kernels.empty(grad, (num, grad.shape[-1]))
    if out.numel():
        grad, index, weights = grad.contiguous(), index.contiguous(), None if weights is None else weights.contiguous()
        count = grad.numel() // grad.shape[-1]
        size = (num, count, index.numel() // count if count else 0, grad.shape[-1])
        factors = None if weights is None else pointer(weights, torch.float32)
        at = (pointer(grad, torch.float32), out.data_ptr())
        kernels.run(grad, "add_rows", factors, *_numbers(index), *size, *at)
    return out


def _check(name: str, index: Tensor | None, *floats: Tensor) -> None:
    refuse_gradient(name, *floats)
    if index is not None and index.dtype not in _INDEX_TYPES:
        raise KernelError(f"gqc.{name} takes int32 or int64 numbers of rows and got {index.dtype}")
    if len({x.dtype for x in floats}) != 1 or not floats[0].is_floating_point():
        raise KernelError(f"gqc.{name} takes floats of one dtype and got {', '.join(str(x.dtype) for x in floats)}")


def _is_float32(*tensors: Tensor) -> bool:
    return all(x.dtype is torch.float32 for x in tensors)


def _numbers(index: Tensor) -> tuple[int, int]:
    """Arguments that give a kernel an index."""
    return int(index.dtype is torch.int64), pointer(index, index.dtype)


def _shape(x: Tensor | None) -> Any:
    return None if x is None else list(x.shape)


def _weighted_sum_fake(weights: Tensor, x: Tensor, index: Tensor | None = None) -> Tensor:
    return x.new_empty((*weights.shape[:-1], x.shape[-1]))


def _add_rows_fake(grad: Tensor, index: Tensor, num: int | SymInt, weights: Tensor | None = None) -> Tensor:
    return grad.new_empty((num, grad.shape[-1]))


define(
    "weighted_sum(Tensor weights, Tensor x, Tensor? index=None) -> Tensor",
    kernel=_weighted_sum,
    fake=_weighted_sum_fake,
)
define(
    "weighted_sum_bwd_weights(Tensor table, Tensor index, Tensor grad) -> Tensor",
    kernel=_weighted_sum_bwd_weights,
    fake=lambda table, index, grad: grad.new_empty(index.shape),
)
define(
    "add_rows(Tensor grad, Tensor index, SymInt num, Tensor? weights=None) -> Tensor",
    kernel=_add_rows,
    fake=_add_rows_fake,
)
