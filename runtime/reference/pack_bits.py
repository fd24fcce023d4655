"""Packed values of few bits in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_bits(values: Tensor, bits: int) -> Tensor:
    """The low ``bits`` of uint8 or bool ``[N, W]`` as uint8 ``[N, ceil(W * bits / 8)]``, value 0 lowest."""
    rows, width = values.shape
    a_byte = 8 // bits
    padded = torch.zeros(rows, -(-width // a_byte) * a_byte, dtype=torch.int64)
    padded[:, :width] = values & (2**bits - 1)
    return (padded.view(rows, padded.shape[1] // a_byte, a_byte) << torch.arange(0, 8, bits)).sum(2).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, width: int) -> Tensor:
    """uint8 ``[N, width]``, what :func:`pack_bits` was given."""
    values = packed.long()[:, :, None] >> torch.arange(0, 8, bits) & (2**bits - 1)
    return values.flatten(1)[:, :width].to(torch.uint8)
