"""Dropout that shares the random generator of stochastic rounding and saves one bit an element.

torch draws a 4-byte number for each element one after the other; this draws 16 bits as a function of the element's
place, on all threads, so the dropped elements are others than torch's for the same seed. The probability is rounded to
a multiple of 1/65536.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.quantize import check_float


def _dropout(x: Tensor, p: float, seed: Tensor, node: int) -> tuple[Tensor, Tensor]:
    refuse_gradient("dropout", x)
    check_float("dropout", x.dtype)
    x = x.contiguous()
    out = kernels.empty(x, x.shape)
    mask = kernels.empty(x, ((x.numel() + 7) // 8,), torch.uint8)
    kernels.run(
        x,
        "dropout",
        x.data_ptr(),
        dtype_code(x.dtype),
        x.numel(),
        pointer(seed, torch.int64),
        node,
        threshold(p),
        factor(p),
        out.data_ptr(),
        mask.data_ptr(),
    )
    return out, mask


def _dropout_fake(x: Tensor, p: float, seed: Tensor, node: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(((x.numel() + 7) // 8,), dtype=torch.uint8)


def _dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    refuse_gradient("dropout_backward", grad)
    check_float("dropout_backward", grad.dtype)
    grad = grad.contiguous()
    out = kernels.empty(grad, grad.shape)
    kernels.run(
        grad,
        "dropout_backward",
        grad.data_ptr(),
        dtype_code(grad.dtype),
        grad.numel(),
        pointer(mask, torch.uint8),
        factor(p),
        out.data_ptr(),
    )
    return out


def _dropout_backward_fake(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    return grad.new_empty(grad.shape)


def threshold(p: float) -> int:
    """Elements whose 16 random bits are below it are dropped."""
    return round(p * 65536)


def factor(p: float) -> float:
    """Of the elements that are kept."""
    return 1 / (1 - p) if p < 1 else 0.0


define(
    "dropout(Tensor x, float p, Tensor seed, int node) -> (Tensor out, Tensor mask)",
    kernel=_dropout,
    fake=_dropout_fake,
)
define(
    "dropout_backward(Tensor grad, Tensor mask, float p) -> Tensor",
    kernel=_dropout_backward,
    fake=_dropout_backward_fake,
)
