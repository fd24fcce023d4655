"""The quantizer in plain PyTorch, bit for bit (docs/architecture.md, "Ops"; Tango, SC'23, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.philox import random_bytes


def absmax(x: Tensor) -> Tensor:
    """Largest magnitude, 0-dim float32; 0 for an empty tensor, NaN if ``x`` holds a NaN."""
    return x.float().abs().amax() if x.numel() else torch.tensor(0.0)


def quantize(
    x: Tensor, absmax_of_x: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    """Round ``x`` to ``2**bits - 1`` levels.

    Args:
        x: float32, bfloat16 or float16, any shape.
        absmax_of_x: 0-dim float32, at least the largest magnitude of ``x``; None to look for it.
        seed: int64 tensor of 2 elements: number drawn for the step, step counter; None only to round to nearest.
        node: number of the graph node, so that each rounds with its own random bits.
        bits: 2 to 8.
        stochastic: round up with the probability of the fraction, in 256 steps; else to the nearest, halves up.

    Returns:
        (int8 tensor of the shape of ``x``, 0-dim float32 scale): ``x`` is about ``q * scale``.

    Stochastic rounding draws one of 256 thresholds, ``(byte + 1/2) / 256``. Over all fractions their mean is 1/2, so
    it is unbiased on average; the expectation of one value is off by at most 1/512 of a step. A value nearer to a level
    than that always becomes the level: one below 1/512 of a step is always 0.
    """
    largest = absmax(x) if absmax_of_x is None else absmax_of_x
    levels = torch.tensor(float(2 ** (bits - 1) - 1))
    inverse = levels / largest
    if not largest.isfinite():
        return torch.zeros(x.shape, dtype=torch.int8), torch.tensor(float("nan"))
    if not inverse.isfinite():
        return torch.zeros(x.shape, dtype=torch.int8), torch.tensor(0.0)
    r = (random_bytes(x.numel(), seed, node).view(x.shape).float() + 0.5) / 256 if stochastic else 0.5
    q = torch.floor(x.float() * inverse + r).clamp(-levels, levels)
    return q.to(torch.int8), largest / levels


def dequantize(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``q * scale`` computed in float32."""
    return (q.float() * scale).to(dtype)
