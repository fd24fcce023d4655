"""Ops of the quantizer: symmetric, one scale a tensor, 2 to 8 bits (Tango, SC'23, section 3.1).

docs/architecture.md fixes every bit of the result; :mod:`gqc.runtime.reference.quantize` spells it out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import DTYPES, dtype_code, pointer
from gqc.runtime.last_absmax import FEWEST_ELEMENTS, LAST_ABSMAX
from gqc.runtime.ops.library import define, refuse_gradient


def check_float(op: str, dtype: torch.dtype) -> None:
    """Raise unless quantized ops compute with the dtype.

    Raises:
        KernelError: if it is none of float32, bfloat16 and float16.
    """
    if dtype not in DTYPES:
        raise KernelError(f"gqc.{op} knows float32, bfloat16 and float16 and got {dtype}: convert the tensor first")


def check_quantize(op: str, x: Tensor, seed: Tensor | None, bits: int, stochastic: bool, most: int) -> None:
    """Check the arguments of an op that quantizes ``x`` to 2 to ``most`` bits.

    Raises:
        KernelError: naming the argument.
    """
    refuse_gradient(op, x)
    check_float(op, x.dtype)
    if not 2 <= bits <= most:
        raise KernelError(f"gqc.{op}: bits={bits} is outside 2 .. {most}")
    if seed is None and stochastic:
        raise KernelError(f"gqc.{op}: stochastic rounding needs a seed, the int64 tensor [number drawn, step]")
    if seed is not None and seed.numel() != 2:
        raise KernelError(f"gqc.{op}: seed has {seed.numel()} elements; it holds the step's number and the step")


def _absmax(x: Tensor) -> Tensor:
    refuse_gradient("absmax", x)
    check_float("absmax", x.dtype)
    x = x.contiguous()
    out = kernels.new_absmax(x)
    kernels.run(x, "absmax", x.data_ptr(), dtype_code(x.dtype), x.numel(), out.data_ptr())
    return out


def _absmax_fake(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.float32)


def _quantize(
    x: Tensor, absmax: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    check_quantize("quantize", x, seed, bits, stochastic, most=8)
    x = x.contiguous()
    q = kernels.empty(x, x.shape, torch.int8)
    scale = x.new_empty((), dtype=torch.float32)
    values = x.data_ptr(), dtype_code(x.dtype), x.numel()
    rounding = None if seed is None else pointer(seed, torch.int64), node, bits, stochastic
    results = q.data_ptr(), scale.data_ptr()
    if absmax is None and x.numel() >= FEWEST_ELEMENTS and not kernels.on_gpu(x):
        guess = LAST_ABSMAX.of(*values)
        kernels.run(x, "quantize_by_guess", *values, guess.ask(), *rounding, *results)
        guess.learn()
    else:
        largest = None if absmax is None else pointer(absmax, torch.float32)
        kernels.run(x, "quantize", *values, largest, *rounding, *results)
    return q, scale


def _quantize_fake(
    x: Tensor, absmax: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((), dtype=torch.float32)


def _dequantize(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    refuse_gradient("dequantize", scale)
    check_float("dequantize", dtype)
    q = q.contiguous()
    out = kernels.empty(q, q.shape, dtype)
    kernels.run(
        q,
        "dequantize",
        pointer(q, torch.int8),
        pointer(scale, torch.float32),
        q.numel(),
        dtype_code(dtype),
        out.data_ptr(),
    )
    return out


def _dequantize_fake(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return q.new_empty(q.shape, dtype=dtype)


define("absmax(Tensor x) -> Tensor", kernel=_absmax, fake=_absmax_fake)
define(
    "quantize(Tensor x, Tensor? absmax, Tensor? seed, int node, int bits, bool stochastic) -> (Tensor q, Tensor scale)",
    kernel=_quantize,
    fake=_quantize_fake,
)
define("dequantize(Tensor q, Tensor scale, ScalarType dtype) -> Tensor", kernel=_dequantize, fake=_dequantize_fake)
