"""Products of quantized matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.graph_arguments import address
from gqc.runtime.ops.int4 import check_packed, unpack, unpacked_like
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
    sizes = check_product("qgemm", a, b, trans_a, trans_b, bias)
    a, b, trans_a, trans_b = contiguous_operands(a, b, trans_a, trans_b)
    return product(a, a_scale, b, b_scale, sizes, trans_a, trans_b, bias, dtype)


def product_sizes(op: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[int, int, int]:
    """Rows, columns and contracted size of a product; checked where they are symbolic, too."""
    m, k = a.shape[::-1] if trans_a else a.shape
    k_of_b, n = b.shape[::-1] if trans_b else b.shape
    torch._check(k == k_of_b, lambda: f"gqc.{op}: contracted sizes {k} and {k_of_b} differ")
    return m, n, k


def check_product(
    op: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, bias: Tensor | None = None
) -> tuple[int, int, int]:
    """Rows, columns and contracted size of a product of int8 matrices.

    Raises:
        KernelError: if they are no int8 matrices or do not fit together.
    """
    m, k = a.shape[::-1] if trans_a else a.shape
    k_of_b, n = b.shape[::-1] if trans_b else b.shape
    if k != k_of_b or (bias is not None and bias.shape != (n,)):
        raise KernelError(
            f"gqc.{op}: a {tuple(a.shape)} (trans_a={trans_a}), b {tuple(b.shape)} (trans_b={trans_b}) and bias "
            f"{None if bias is None else tuple(bias.shape)} do not fit together"
        )
    for x in (a, b):
        if x.dtype is not torch.int8:
            raise KernelError(f"gqc.{op} needs int8 matrices and got {x.dtype}: quantize them first")
    return m, n, k


def contiguous_operands(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool) -> tuple[Tensor, Tensor, bool, bool]:
    """The matrices of a product as a kernel reads them, with their flags."""
    a, trans_a = contiguous(a, trans_a)
    b, trans_b = contiguous(b, trans_b)
    if trans_a and a.shape[1] > a.shape[0] and not kernels.on_gpu(a):
        # The CPU's kernel shares out the contracted index of a transposed operand, which pays for small outputs only.
        a, trans_a = a.t().contiguous(), False
    return a, b, trans_a, trans_b


def product(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    sizes: tuple[int, int, int],
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
    row_scale: Tensor | None = None,
    positive: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel on matrices that are int8, or packed where they are uint8.

    Args:
        row_scale: one factor a row, float32.
        positive: takes where the output is positive, one bit an element; without it there is no ReLU.
    """
    m, n, k = sizes
    out = kernels.empty(a, (m, n), dtype)
    absmax = kernels.new_absmax(a_scale)
    bias = None if bias is None else bias.float().contiguous()
    kernels.run(
        a,
        "qgemm",
        *(pointer(a, a.dtype), pointer(a_scale, torch.float32), a.dtype is torch.uint8),
        *(pointer(b, b.dtype), pointer(b_scale, torch.float32), b.dtype is torch.uint8),
        *(m, n, k, trans_a, trans_b, address(bias), address(row_scale), positive is not None),
        *(dtype_code(dtype), out.data_ptr(), absmax.data_ptr(), address(positive)),
    )
    return out, absmax


def contiguous(x: Tensor, transposed: bool) -> tuple[Tensor, bool]:
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
    m, n, _ = product_sizes("qgemm", a, b, trans_a, trans_b)
    return a.new_empty((m, n), dtype=dtype), a.new_empty((), dtype=torch.float32)


def _qgemm_int4(
    a: Tensor,
    a_scale: Tensor,
    a_width: int,
    b: Tensor,
    b_scale: Tensor,
    b_width: int,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    refuse_gradient("qgemm_int4", a_scale, b_scale, bias)
    check_float("qgemm_int4", dtype)
    check_packed("qgemm_int4", a, [a_width])
    check_packed("qgemm_int4", b, [b_width])
    m, k = (a_width, a.shape[0]) if trans_a else (a.shape[0], a_width)
    k_of_b, n = (b_width, b.shape[0]) if trans_b else (b.shape[0], b_width)
    if k != k_of_b or (bias is not None and bias.shape != (n,)):
        raise KernelError(
            f"gqc.qgemm_int4: a {(a.shape[0], a_width)} (trans_a={trans_a}), b {(b.shape[0], b_width)} "
            f"(trans_b={trans_b}) and bias {None if bias is None else tuple(bias.shape)} do not fit together"
        )
    a, b = a.contiguous(), b.contiguous()
    if trans_a and m > k and not kernels.on_gpu(a):  # as in qgemm; a transposed copy cannot be made of half bytes
        a, trans_a = unpack(a, [a_width]).t().contiguous(), False
    return product(a, a_scale, b, b_scale, (m, n, k), trans_a, trans_b, bias, dtype)


def _qgemm_int4_fake(
    a: Tensor,
    a_scale: Tensor,
    a_width: int,
    b: Tensor,
    b_scale: Tensor,
    b_width: int,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    a, b = unpacked_like(a, [a_width]), unpacked_like(b, [b_width])
    return _qgemm_fake(a, a_scale, b, b_scale, trans_a, trans_b, bias, dtype)


define(
    "qgemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, bool trans_a, bool trans_b, Tensor? bias, "
    "ScalarType dtype) -> (Tensor out, Tensor absmax)",
    kernel=_qgemm,
    fake=_qgemm_fake,
)
define(
    "qgemm_int4(Tensor a, Tensor a_scale, SymInt a_width, Tensor b, Tensor b_scale, SymInt b_width, bool trans_a, "
    "bool trans_b, Tensor? bias, ScalarType dtype) -> (Tensor out, Tensor absmax)",
    kernel=_qgemm_int4,
    fake=_qgemm_int4_fake,
)
