"""Products of quantized matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native
from gqc.runtime.native import pointer
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.quantize import check_float


def _qgemm(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    refuse_gradient("qgemm", a_scale, b_scale, bias)
    check_float("qgemm", dtype)
    m, k = a.shape[::-1] if trans_a else a.shape
    k_of_b, n = b.shape[::-1] if trans_b else b.shape
    if k != k_of_b or (bias is not None and bias.shape != (n,)):
        raise KernelError(
            f"gqc.qgemm: a {tuple(a.shape)} (trans_a={trans_a}), b {tuple(b.shape)} (trans_b={trans_b}) and bias "
            f"{None if bias is None else tuple(bias.shape)} do not fit together"
        )
    a, trans_a = _contiguous(a, trans_a)
    b, trans_b = _contiguous(b, trans_b)
    if trans_a and m > k:
        # The kernel shares out the contracted index of a transposed operand, which pays for small outputs only.
        a, trans_a = a.t().contiguous(), False
    if bias is not None:
        bias = bias.float().contiguous()
    out = a.new_empty((m, n), dtype=dtype)
    absmax = torch.empty_like(a_scale)
    native.run(
        "qgemm",
        pointer(a, torch.int8),
        pointer(a_scale, torch.float32),
        pointer(b, torch.int8),
        pointer(b_scale, torch.float32),
        m,
        n,
        k,
        trans_a,
        trans_b,
        None if bias is None else bias.data_ptr(),
        dtype is torch.bfloat16,
        out.data_ptr(),
        absmax.data_ptr(),
    )
    return out, absmax


def _contiguous(x: Tensor, transposed: bool) -> tuple[Tensor, bool]:
    """A contiguous matrix and its flag: a transposed view is read as it lies, anything else is copied."""
    if x.is_contiguous():
        return x, transposed
    if x.t().is_contiguous():
        return x.t(), not transposed
    return x.contiguous(), transposed


def _qgemm_fake(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    m, k = a.shape[::-1] if trans_a else a.shape
    k_of_b, n = b.shape[::-1] if trans_b else b.shape
    torch._check(k == k_of_b, lambda: f"gqc.qgemm: contracted sizes {k} and {k_of_b} differ")
    return a.new_empty((m, n), dtype=dtype), a.new_empty((), dtype=torch.float32)


define(
    "qgemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, bool trans_a, bool trans_b, Tensor? bias, "
    "ScalarType dtype) -> (Tensor out, Tensor absmax)",
    cpu=_qgemm,
    fake=_qgemm_fake,
)
