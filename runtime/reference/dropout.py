"""Dropout with counter-based random bits in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.philox import random_bits


def dropout(x: Tensor, p: float, seed: Tensor, node: int) -> tuple[Tensor, Tensor]:
    """See :func:`gqc.runtime.ops.dropout`: (result, packed mask)."""
    kept = random_bits(x.numel(), seed, node) >= round(p * 65536)
    scale = 1 / (1 - p) if p < 1 else 0.0
    return (x.float() * torch.where(kept.view(x.shape), scale, 0.0)).to(x.dtype), pack(kept)


def dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """Gradient of :func:`dropout` with respect to its input."""
    scale = 1 / (1 - p) if p < 1 else 0.0
    kept = unpack(mask, grad.numel()).view(grad.shape)
    return (grad.float() * torch.where(kept, scale, 0.0)).to(grad.dtype)


def pack(bits: Tensor) -> Tensor:
    """Bool ``[n]`` to uint8 ``[(n + 7) // 8]``, the first bit lowest."""
    padded = torch.zeros((bits.numel() + 7) // 8 * 8, dtype=torch.int64, device=bits.device)
    padded[: bits.numel()] = bits
    return (padded.view(-1, 8) << torch.arange(8, device=bits.device)).sum(1).to(torch.uint8)


def unpack(mask: Tensor, n: int) -> Tensor:
    """Inverse of :func:`pack`."""
    return (mask.long()[:, None] >> torch.arange(8, device=mask.device) & 1).flatten()[:n].bool()
