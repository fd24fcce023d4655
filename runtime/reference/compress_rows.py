"""Rows compressed to few bits in plain PyTorch, bit for bit (TinyKG, RecSys'22, equations 3 and 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.pack_bits import pack_bits, unpack_bits
from gqc.runtime.reference.philox import random_bits

LARGEST_FLOAT16 = 65504.0


def compress_rows(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Round rows to ``2**bits`` levels between their least and their largest element.

    Args:
        x: float32, bfloat16 or float16 ``[N, W]``.
        bits: 1, 2, 4 or 8.
        seed: int64 tensor of 2 elements, or None to round to nearest.
        node: number of the graph node, so that each rounds with its own random bits.
        stats: float32 or bfloat16. In bfloat16 Z is rounded down and R up, so that all elements lie between.

    Returns:
        (packed values, least elements ``Z [N]``, ranges ``R [N]``); both are NaN for a row that holds a NaN or Inf or
        whose range overflows.
    """
    if x.numel() == 0:
        nothing = torch.zeros(len(x), dtype=stats)
        return pack_bits(torch.zeros(x.shape, dtype=torch.uint8), bits), nothing, nothing.clone()
    bins, rows = float(2**bits - 1), x.float()
    zero = rows.amin(1)
    if stats is torch.bfloat16:
        zero = _bfloat16_below(zero)
    spread = rows.amax(1) - zero
    if stats is torch.bfloat16:
        spread = -_bfloat16_below(-spread)
    finite = zero.isfinite() & spread.isfinite()
    factor = torch.tensor(bins) / spread  # a number would be multiplied by the reciprocal
    factor = torch.where(finite & factor.isfinite(), factor, 0.0)
    r = 0.5 if seed is None else random_bits(x.numel(), seed, node).view(x.shape).float() / 65536
    q = ((rows - zero[:, None]) * factor[:, None] + r).clamp(0, bins)
    values = torch.where(finite[:, None], q, 0.0).to(torch.uint8)
    zero, spread = (torch.where(finite, s, torch.nan).to(stats) for s in (zero, spread))
    return pack_bits(values, bits), zero, spread


def decompress_rows(packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype) -> Tensor:
    """``q * (R / B) + Z`` in float32, rounded to ``dtype``; in float16 at most its largest number."""
    step = spread.float() / float(2**bits - 1)
    out = unpack_bits(packed, bits, width).float() * step[:, None] + zero.float()[:, None]
    return (out.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16) if dtype is torch.float16 else out).to(dtype)


def _bfloat16_below(x: Tensor) -> Tensor:
    """The largest bfloat16 that is not above; what is not finite stays or becomes so."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    down = (bits + torch.where(bits >> 31 == 1, 0xFFFF, 0)) & 0xFFFF0000
    return torch.where(x.isfinite(), torch.where(down > 0x7FFFFFFF, down - 2**32, down).int().view(torch.float32), x)
