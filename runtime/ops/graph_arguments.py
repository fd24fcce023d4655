"""What every graph op asks of its arguments before a kernel reads their memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.ops.feature_layout import OP_CODES
from gqc.runtime.relation import DST, SRC, num_rows

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_STANDS_ON = {"u": "source nodes", "v": "destination nodes", "e": "edges"}


def operands(op: str, lhs: Tensor | None, rhs: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The operands that ``op`` reads, ``None`` in place of one that a copy ignores."""
    if op == "copy_lhs":
        return lhs, None
    if op == "copy_rhs":
        return None, rhs
    return lhs, rhs


def is_int64(g: Sequence[Tensor]) -> bool:
    """Whether the relation's index type is int64 (else int32).

    Raises:
        KernelError: if it is neither, or a tensor differs in type or is not contiguous.
    """
    dtype = g[0].dtype
    for tensor in g:
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            raise KernelError("a relation needs 8 contiguous tensors of one index type: rebuild it from the graph")
    if dtype is torch.int64:
        return True
    if dtype is torch.int32:
        return False
    raise KernelError(f"a relation's index type is {dtype}: only int32 and int64 are supported")


def check_rows(name: str, g: Sequence[Tensor], x: Tensor, target: str) -> None:
    """Refuse features with another number of rows than the graph has.

    Raises:
        KernelError: naming what the rows stand for.
    """
    rows = num_rows(g, target)
    if x.dim() == 0 or x.shape[0] != rows:
        raise KernelError(
            f"gqc.{name}: features of shape {list(x.shape)} for a graph with {rows} {_STANDS_ON[target]}: "
            f"they must have {rows} rows"
        )


def check_operands(name: str, op: str, g: Sequence[Tensor], *targets: tuple[Tensor | None, str]) -> None:
    """Check the two operands of ``op`` together with what they stand on, as :func:`check_rows`.

    Raises:
        KernelError: also if ``op`` lacks an operand that it reads, or is unknown.
    """
    if op not in OP_CODES:
        raise KernelError(f"gqc.{name}: unknown operation {op!r}: expected one of {', '.join(OP_CODES)}")
    for side, (x, target) in zip(("rhs", "lhs"), targets, strict=True):
        if op == f"copy_{side}":
            continue
        if x is None:
            raise KernelError(f"gqc.{name}: operation {op!r} needs both operands: give the one on {_STANDS_ON[target]}")
        check_rows(name, g, x, target)


def check_floats(name: str, *tensors: Tensor | None) -> None:
    """Refuse features that a full-precision op does not compute with.

    Raises:
        KernelError: for integers, bool and complex numbers.
    """
    for x in tensors:
        if x is not None and x.dtype not in FLOATS:
            raise KernelError(f"gqc.{name}: features of {x.dtype}: convert them to a floating-point type first")


def check_reduce(name: str, reduce: str) -> None:
    """Refuse a reduction other than max and min.

    Raises:
        KernelError: for any other.
    """
    if reduce not in ("max", "min"):
        raise KernelError(f"gqc.{name}: reduce is {reduce!r}: expected 'max' or 'min'")


def check_quantized(name: str, *pairs: tuple[Tensor | None, Tensor | None], dtype: torch.dtype) -> None:
    """Check operands that are INT8 with a scale or floating-point without, and the dtype of the output.

    Raises:
        KernelError: if an operand does not go with its scale, none is INT8, or the output is no float.
    """
    for x, scale in pairs:
        if scale is None:
            check_floats(name, x)
        elif x is None or x.dtype is not torch.int8 or scale.dtype is not torch.float32 or scale.numel() != 1:
            raise KernelError(
                f"gqc.{name}: a scale is one float32 number and goes with int8 features: quantize them first"
            )
    if all(scale is None for _, scale in pairs):
        raise KernelError(f"gqc.{name}: no operand has a scale: use the full-precision op instead")
    check_output(name, dtype)


def check_output(name: str, dtype: torch.dtype) -> None:
    """Refuse an output dtype that is no float.

    Raises:
        KernelError: naming it.
    """
    if dtype not in FLOATS:
        raise KernelError(f"gqc.{name}: output of {dtype}: only floating-point types are computed")


def quantized_or_float32(x: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """An operand as the kernels read it: contiguous, int8 where it has a scale, else float32."""
    if x is None:
        return None
    return float32(x) if scale is None else x.contiguous()


def rounded(out: Tensor, absmax: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A float32 output and its absmax in another dtype: rounding keeps the order of magnitudes."""
    return (out, absmax) if dtype is torch.float32 else (out.to(dtype), absmax.to(dtype).float())


def row_factors(name: str, g: Sequence[Tensor], rows: Tensor | None) -> Tensor | None:
    """Factors of the destinations' rows as the kernels read them: contiguous.

    Raises:
        KernelError: for anything but one float32 number a destination.
    """
    if rows is None:
        return None
    check_rows(name, g, rows, "v")
    if rows.dtype is not torch.float32 or rows.dim() != 1:
        raise KernelError(
            f"gqc.{name}: row factors of shape {list(rows.shape)} and {rows.dtype}: give one float32 number a row"
        )
    return rows.contiguous()


def float32(x: Tensor) -> Tensor:
    """``x`` as the kernels read it: contiguous float32."""
    if x.dtype is torch.float32 and x.is_contiguous():
        return x
    return x.to(torch.float32).contiguous()


def result_dtype(lhs: Tensor | None, rhs: Tensor | None) -> torch.dtype:
    """Dtype of an op on these operands: theirs, or what torch promotes them to where they differ."""
    if lhs is None or rhs is None or lhs.dtype is rhs.dtype:
        return (rhs if lhs is None else lhs).dtype
    return torch.promote_types(lhs.dtype, rhs.dtype)


def written_dtype(on: Tensor, dtype: torch.dtype) -> torch.dtype:
    """What the kernels of SDDMM write on the device of ``on`` where ``dtype`` is asked for: on a GPU float32."""
    return torch.float32 if kernels.on_gpu(on) or dtype not in kernels.DTYPES else dtype


def edge_index(g: Sequence[Tensor], target: str) -> int | None:
    """Address of the row that each edge reads from features on ``target``; ``None`` where that is the edge id."""
    if target == "e":
        return None
    return g[SRC if target == "u" else DST].data_ptr()


def address(x: Tensor | None) -> int | None:
    """Address of the memory of ``x``, null without a tensor."""
    return None if x is None else x.data_ptr()
