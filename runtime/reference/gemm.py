"""Quantized matrix product in plain PyTorch, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.quantize import absmax


def qgemm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """``float32(a @ b) * (a_scale * b_scale) + bias`` with an exact integer product.

    Args:
        a: int8 ``[M, K]``, or ``[K, M]`` with ``trans_a``.
        a_scale: 0-dim float32.
        b: int8 ``[K, N]``, or ``[N, K]`` with ``trans_b``.
        b_scale: 0-dim float32.
        trans_a: contract the first axis of ``a``.
        trans_b: contract the last axis of ``b``.
        bias: ``[N]`` or None.
        dtype: float32, bfloat16 or float16.

    Returns:
        (``[M, N]`` of ``dtype``, 0-dim float32 largest magnitude of it).
    """
    product = (a.t() if trans_a else a).long() @ (b.t() if trans_b else b).long()
    out = product.float() * (a_scale * b_scale)
    if bias is not None:
        out = out + bias.float()
    out = out.to(dtype)
    return out, absmax(out)
