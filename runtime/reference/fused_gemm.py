"""Quantized matrix products with the steps around them, in plain PyTorch: a chain of the ops that they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.reference.dropout import pack, unpack
from gqc.runtime.reference.gemm import qgemm
from gqc.runtime.reference.quantize import absmax, quantize


def qgemm_epilogue(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`qgemm` in float32, then ``* row_scale[:, None]``, then ReLU; rounded to ``dtype`` at last.

    Returns:
        (``[M, N]``, 0-dim float32 largest magnitude of it, one bit an element where it is not <= 0: uint8
        ``[M, (N + 7) // 8]``, or ``[0, 0]`` without ReLU).
    """
    out, _ = qgemm(a, a_scale, b, b_scale, trans_a, trans_b, bias, torch.float32)
    if row_scale is not None:
        out = out * row_scale.float()[:, None]
    out = (out.relu() if relu else out).to(dtype)
    positive = _pack_rows(~(out <= 0)) if relu else torch.empty((0, 0), dtype=torch.uint8)
    return out, absmax(out), positive


def quantize_qgemm(
    x: Tensor,
    absmax_of_x: Tensor | None,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """:func:`quantize` of ``x`` ``[M, K]``, then :func:`qgemm_epilogue`.

    Returns:
        (out, absmax of it, int8 copy of ``x``, its scale, positive bits).
    """
    q, scale = quantize(x, absmax_of_x, seed, node, bits, stochastic)
    out, largest, positive = qgemm_epilogue(q, scale, b, b_scale, False, trans_b, bias, row_scale, relu, dtype)
    return out, largest, q, scale, positive


def qgemm_int8(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`qgemm_epilogue`, then :func:`quantize` with its absmax.

    Returns:
        (int8 ``[M, N]``, its scale, positive bits).
    """
    out, largest, positive = qgemm_epilogue(a, a_scale, b, b_scale, trans_a, trans_b, bias, row_scale, relu, dtype)
    return (*quantize(out, largest, seed, node, bits, stochastic), positive)


def relu_backward(grad: Tensor, positive: Tensor) -> Tensor:
    """``grad`` ``[M, N]`` where a bit of ``positive`` is set, 0 elsewhere."""
    bits = [unpack(row, grad.shape[1]) for row in positive]
    return torch.where(torch.stack(bits), grad, 0.0) if bits else grad.clone()


def _pack_rows(bits: Tensor) -> Tensor:
    packed = [pack(row) for row in bits]
    return torch.stack(packed) if packed else torch.empty((0, (bits.shape[1] + 7) // 8), dtype=torch.uint8)
