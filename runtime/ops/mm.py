"""Products of matrices in full precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels, native
from gqc.runtime.float24 import as_rows, dtype_of, is_float24, shape_of, widened
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.gemm import contiguous
from gqc.runtime.ops.graph_arguments import address
from gqc.runtime.ops.library import define, refuse_gradient

PRECISIONS = ("fp32", "bf16x3")
"""Of products of float32 matrices: float32, or three products of bfloat16 where the processor has tiles for them."""


def in_bf16x3(op: str, a: Tensor, precision: str) -> bool:
    """Whether the kernel of a product with ``a`` computes three products of bfloat16.

    Raises:
        KernelError: if there is no such precision.
    """
    if precision not in PRECISIONS:
        raise KernelError(f"gqc.{op}: precision {precision!r} is none of {', '.join(map(repr, PRECISIONS))}")
    return precision == "bf16x3" and not kernels.on_gpu(a) and native.multiplies_bf16x3()


def _mm(
    a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None = None, precision: str = "fp32"
) -> Tensor:
    refuse_gradient("mm", a, b, rows)
    bf16x3 = in_bf16x3("mm", a, precision)
    m, n, k = check_product("mm", a, b, trans_a, trans_b, rows)
    if kernels.on_gpu(a) or dtype_of(a) is not torch.float32 or not m * n * k:
        return _composed(a, b, trans_a, trans_b, rows)
    a, trans_a = (rows_of(a), trans_a) if is_float24(a) else contiguous(a, trans_a)
    if is_float24(b):
        b = rows_of(b) if trans_a and not trans_b else widened(b)
    b, trans_b = (b, trans_b) if is_float24(b) else contiguous(b, trans_b)
    if trans_a and trans_b:
        return _composed(a, b, trans_a, trans_b, rows)
    if rows is not None and not trans_a:  # a was a transposed view
        return _mm(a, _scaled(widened(b), rows), trans_a, trans_b, None, precision)
    out = kernels.empty(a, (m, n), torch.float32)
    factors = None if rows is None else rows.contiguous()
    operands = a.data_ptr(), b.data_ptr(), m, n, k, trans_a, trans_b
    kernels.run(a, "mm", *operands, address(factors), is_float24(a), is_float24(b), bf16x3, out.data_ptr())
    return out


def rows_of(a: Tensor) -> Tensor:
    """An operand, of float32 or float24, whose rows the kernels read."""
    return as_rows(a) if is_float24(a) else a.contiguous()


def check_product(
    op: str, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None = None
) -> tuple[int, int, int]:
    """Rows, columns and contracted size of a product of float matrices, which may be float24.

    Raises:
        KernelError: if they are no matrices of one floating-point type, or do not fit together.
    """
    matrices = a.dim() == 2 and b.dim() == 2
    m, k = (shape_of(a)[::-1] if trans_a else shape_of(a)) if matrices else (0, 0)
    k_of_b, n = (shape_of(b)[::-1] if trans_b else shape_of(b)) if matrices else (0, 0)
    if not matrices or k != k_of_b:
        raise KernelError(
            f"gqc.{op}: a {tuple(a.shape)} (trans_a={trans_a}) and b {tuple(b.shape)} (trans_b={trans_b}) do not fit "
            "together"
        )
    if not dtype_of(a).is_floating_point or dtype_of(a) is not dtype_of(b):
        raise KernelError(f"gqc.{op} needs matrices of one floating-point type and got {a.dtype} and {b.dtype}")
    if rows is not None and (trans_b or not trans_a or rows.shape != (k,) or rows.dtype is not dtype_of(b)):
        raise KernelError(
            f"gqc.{op}: rows {tuple(rows.shape)} of {rows.dtype} are no factors of the {k} contracted rows of b: "
            "with them a is read transposed, b is not, and all are of one type"
        )
    return m, n, k


class SecondProduct(NamedTuple):
    """A second product that a kernel computes beside its own.

    Attributes:
        arguments: the kernel's: the left operand and whether it is float24, the right one, contracted size, and
            whether the right one is read transposed.
        kept: what they point to.
    """

    arguments: tuple[object, ...]
    kept: list[Tensor]


def second_arguments(op: str, shape: Sequence[int], a: Tensor | None, b: Tensor | None, trans_b: bool) -> SecondProduct:
    """A product of the shape of the first one; none without operands.

    Raises:
        KernelError: if one operand is missing, or they do not fit.
    """
    if a is None and b is None:
        return SecondProduct((None, False, None, 0, False), [])
    if a is None or b is None:
        raise KernelError(f"gqc.{op}: a second product needs both a2 and b2")
    *own, k = check_product(op, a, b, False, trans_b)
    if own != list(shape):
        raise KernelError(f"gqc.{op}: the second product is {tuple(own)} and the first {tuple(shape)}")
    a, (b, trans_b) = rows_of(a), contiguous(widened(b), trans_b)
    return SecondProduct((a.data_ptr(), is_float24(a), pointer(b, torch.float32), k, trans_b), [a, b])


def _composed(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None) -> Tensor:
    a, b = widened(a), widened(b)
    b = b if rows is None else _scaled(b, rows)
    return torch.mm(a.t() if trans_a else a, b.t() if trans_b else b)


def _scaled(b: Tensor, rows: Tensor) -> Tensor:
    return b * rows[:, None]


def _fake(
    a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, rows: Tensor | None = None, precision: str = "fp32"
) -> Tensor:
    k, m = shape_of(a) if trans_a else shape_of(a)[::-1]
    n, k_of_b = shape_of(b) if trans_b else shape_of(b)[::-1]
    torch._check(k == k_of_b, lambda: f"gqc.mm: contracted sizes {k} and {k_of_b} differ")
    return a.new_empty((m, n), dtype=dtype_of(a))


define(
    "mm(Tensor a, Tensor b, bool trans_a, bool trans_b, Tensor? rows=None, str precision='fp32') -> Tensor",
    kernel=_mm,
    fake=_fake,
)
