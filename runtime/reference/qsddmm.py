"""SDDMM on INT8 operands, dequantized on the fly (Tango, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.runtime.reference.qspmm import combined
from gqc.runtime.reference.sddmm import sddmm


def qsddmm(
    g: Sequence[Tensor],
    op: str,
    lhs: Tensor,
    lhs_scale: Tensor | None,
    rhs: Tensor,
    rhs_scale: Tensor | None,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    """SDDMM of ``q * scale`` for INT8 operands and of the value itself for an operand without scale.

    ``mul`` and ``dot`` take the scales out; their products of two INT8 operands are exact.
    """
    if op in ("mul", "dot"):
        exact = lhs_scale is not None and rhs_scale is not None
        lhs, rhs = (lhs.long(), rhs.long()) if exact else (lhs.float(), rhs.float())
        out = sddmm(g, op, lhs, rhs, lhs_target, rhs_target).float()
        for scale in combined(lhs_scale, rhs_scale):
            out = out * scale
        return out.to(dtype)
    lhs = lhs.float() if lhs_scale is None else lhs.float() * lhs_scale
    rhs = rhs.float() if rhs_scale is None else rhs.float() * rhs_scale
    return sddmm(g, op, lhs, rhs, lhs_target, rhs_target).to(dtype)
