"""Products of rows with a matrix of a stack each, row by row in plain PyTorch (differentiable)."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_mm(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """``out[i] = a[i] @ b[index[i]]``.

    Args:
        a: ``[N, K]``.
        b: ``[R, K, M]``.
        index: integer ``[N]``, values from 0 to R - 1.

    Returns:
        ``[N, M]``.
    """
    return torch.einsum("nk,nkm->nm", a, b[index])


def segment_mm(a: Tensor, b: Tensor, seglen: Tensor) -> Tensor:
    """``a[rows of run r] @ b[r]`` for R runs of consecutive rows.

    Args:
        a: ``[N, K]``.
        b: ``[R, K, M]``.
        seglen: integer ``[R]``, adds up to N.

    Returns:
        ``[N, M]``.
    """
    return gather_mm(a, b, torch.repeat_interleave(torch.arange(seglen.shape[0]), seglen))
