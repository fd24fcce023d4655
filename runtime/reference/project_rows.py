"""Rows projected to fewer elements and back, in float64 (EXACT, ICLR'22, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.philox import random_bits


def signs(width: int, kept: int, seed: Tensor, node: int) -> Tensor:
    """The projection ``R [width, kept]``, of entries ``kept**-0.5`` and ``-kept**-0.5``.

    Args:
        width: elements of a row.
        kept: elements of a projected row.
        seed: int64 tensor of 2 elements.
        node: number of the graph node; the random bits are those of node ``node + 2**31``.
    """
    positive = random_bits(width * kept, seed, node + 2**31).view(width, kept) >= 32768
    return torch.where(positive, kept**-0.5, -(kept**-0.5)).double()


def project_rows(x: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    """``x R`` of float rows ``[*, W]``: ``[*, width]`` of the same dtype."""
    return (x.double() @ signs(x.shape[-1], width, seed, node)).to(x.dtype)


def unproject_rows(y: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    """``y R'`` of projected rows ``[*, r]``: ``[*, width]``, whose expectation are the rows that were projected."""
    return (y.double() @ signs(width, y.shape[-1], seed, node).T).to(y.dtype)
