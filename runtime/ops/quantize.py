"""Ops of the INT8 quantizer."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native
from gqc.runtime.native import pointer
from gqc.runtime.ops.library import define, refuse_gradient


def _float_pointer(x: Tensor) -> int:
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise KernelError(f"quantization takes float32 or bfloat16 and got {x.dtype}: convert the tensor first")
    return pointer(x, x.dtype)


def _absmax(x: Tensor) -> Tensor:
    refuse_gradient("absmax", x)
    x = x.contiguous()
    out = x.new_empty((), dtype=torch.float32)
    native.run("absmax", _float_pointer(x), x.dtype is torch.bfloat16, x.numel(), pointer(out, torch.float32))
    return out


def _absmax_fake(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.float32)


define("absmax(Tensor x) -> Tensor", cpu=_absmax, fake=_absmax_fake)
