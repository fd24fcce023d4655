"""Rows compressed to few bits in plain PyTorch, bit for bit (TinyKG, RecSys'22, equations 3 and 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gqc.runtime.reference.pack_bits import pack_bits, unpack_bits
from gqc.runtime.reference.philox import random_bits

LARGEST_FLOAT16 = 65504.0


def compress_rows(
    x: Tensor, bits: int, seed: Tensor | None, node: int, stats: torch.dtype, group: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Round rows to ``2**bits`` levels between their least and their largest element.

    Args:
        x: float32, bfloat16 or float16 ``[*, W]``.
        bits: 1, 2, 4 or 8.
        seed: int64 tensor of 2 elements, or None to round to nearest.
        node: number of the graph node, so that each rounds with its own random bits.
        stats: float32 or bfloat16. In bfloat16 Z is rounded down and R up, so that all elements lie between.
        group: elements of a row that have levels of their own, a multiple of 8; the last group of a row may be
            shorter. 0: the whole row.

    Returns:
        (packed values, least elements ``Z [*, groups]``, ranges ``R [*, groups]``); both are NaN for a group that
        holds a NaN or Inf or whose range overflows.
    """
    rows, width = x.shape[:-1], x.shape[-1]
    if x.numel() == 0:
        nothing = torch.zeros(*rows, -(-width // group) if group else 1, dtype=stats)
        return torch.zeros(*rows, (width * bits + 7) // 8, dtype=torch.uint8), nothing, nothing.clone()
    random = torch.full(x.shape, 32768) if seed is None else _random_bits(x.shape, seed, node)
    groups = zip(x.float().split(group or width, -1), random.split(group or width, -1), strict=True)
    values, zero, spread = zip(*(_round(part, r, bits, stats) for part, r in groups), strict=True)
    packed = pack_bits(torch.cat(values, -1).view(-1, width), bits)
    return packed.view(*rows, -1), torch.stack(zero, -1), torch.stack(spread, -1)


def _random_bits(shape: torch.Size, seed: Tensor, node: int) -> Tensor:
    """16 bits an element; elements ``2i`` and ``2i + 1`` of a row share them, the first with its bytes exchanged."""
    rows, pairs = math.prod(shape[:-1]), (shape[-1] + 1) // 2
    bits = random_bits(rows * pairs, seed, node).long()
    exchanged = (bits & 0xFF) << 8 | bits >> 8
    return torch.stack([exchanged, bits], -1).view(rows, 2 * pairs)[:, : shape[-1]].reshape(shape)


def _round(x: Tensor, random: Tensor, bits: int, stats: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Values of a group of each row, with the group's Z and R; random: 16 bits an element."""
    bins = float(2**bits - 1)
    zero = x.amin(-1) + 0.0  # no -0
    if stats is torch.bfloat16:
        zero = _bfloat16_below(zero)
    spread = x.amax(-1) - zero
    if stats is torch.bfloat16:
        spread = -_bfloat16_below(-spread)
    finite = zero.isfinite() & spread.isfinite()
    factor = torch.tensor(65536 * bins) / spread  # a number would be multiplied by the reciprocal
    factor = torch.where(finite & factor.isfinite(), factor, 0.0)
    fixed = torch.where(finite[..., None], (x - zero[..., None]) * factor[..., None], 0.0).round().long()
    values = ((fixed + random) >> 16).clamp(max=2**bits - 1).to(torch.uint8)
    zero, spread = (torch.where(finite, s, torch.nan).to(stats) for s in (zero, spread))
    return values, zero, spread


def decompress_rows(
    packed: Tensor, zero: Tensor, spread: Tensor, bits: int, width: int, dtype: torch.dtype, group: int = 0
) -> Tensor:
    """``q * (R / B) + Z`` in float32, rounded to ``dtype``; in float16 at most its largest number."""
    rows = packed.shape[:-1]
    if math.prod(rows) * width == 0:
        return torch.zeros(*rows, width, dtype=dtype)
    values = unpack_bits(packed.view(-1, packed.shape[-1]), bits, width).view(*rows, width).float()
    step, least = (
        of_groups.repeat_interleave(group or width, -1)[..., :width]
        for of_groups in (spread.float() / float(2**bits - 1), zero.float())
    )
    out = values * step + least
    return (out.clamp(-LARGEST_FLOAT16, LARGEST_FLOAT16) if dtype is torch.float16 else out).to(dtype)


def _bfloat16_below(x: Tensor) -> Tensor:
    """The largest bfloat16 that is not above; what is not finite stays or becomes so."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    down = (bits + torch.where(bits >> 31 == 1, 0xFFFF, 0)) & 0xFFFF0000
    return torch.where(x.isfinite(), torch.where(down > 0x7FFFFFFF, down - 2**32, down).int().view(torch.float32), x)
