"""Full-precision products of row runs, or single rows, with one matrix of a stack each (relations of an RGCN)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import SymInt, Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import pointer
from gqc.runtime.memory import ByIdentity
from gqc.runtime.ops.graph_arguments import float32
from gqc.runtime.ops.library import define, differentiate


def _runs(op: str, a: Tensor, seglen: Tensor, matrices: int) -> list[tuple[int, int]]:
    """First row and length of each run."""
    lengths = seglen.tolist()
    if len(lengths) != matrices or sum(lengths) != a.shape[0] or any(n < 0 for n in lengths):
        raise KernelError(
            f"gqc.{op}: seglen {lengths} must hold one length for each of {matrices} matrices and add up to the "
            f"{a.shape[0]} rows of a"
        )
    return list(zip(accumulate(lengths, initial=0), lengths, strict=False))


def _is_counted_on_gpu(a: Tensor, lengths: Tensor) -> bool:
    """Whether the lengths are in the GPU's memory, from where they cannot be read without waiting for all its work."""
    return kernels.on_gpu(a) and lengths.device == a.device and a.dtype is not torch.float64


def _grouped_mm(a: Tensor, b: Tensor, seglen: Tensor, order: Tensor | None) -> Tensor:
    """Row ``order[i]`` of a times the matrix of the run that holds i, in float32; NaN where runs do not fit."""
    if seglen.shape != b.shape[:1]:
        raise KernelError(f"gqc.segment_mm: {seglen.numel()} lengths for {b.shape[0]} matrices: give one for each")
    values, matrices, lengths = float32(a), b.to(torch.float32), seglen.to(torch.int64).contiguous()
    out = kernels.empty(values, (a.shape[0], b.shape[2]))
    if out.numel():
        kernels.run(
            a,
            "segment_mm",
            *(*a.shape, b.shape[2], b.shape[0], pointer(lengths, torch.int64)),
            *(values.data_ptr(), None if order is None else pointer(order, torch.int64)),
            *(matrices.data_ptr(), matrices.stride(), out.data_ptr()),
        )
    return out.to(a.dtype)


def _grouped_mm_bwd_b(a: Tensor, grad: Tensor, seglen: Tensor, order: Tensor | None) -> Tensor:
    values, gradient, lengths = float32(a), float32(grad), seglen.to(torch.int64).contiguous()
    out = kernels.empty(values, (seglen.shape[0], a.shape[1], grad.shape[1]))
    if out.numel():
        kernels.run(
            a,
            "segment_mm_bwd_b",
            *(*a.shape, grad.shape[1], seglen.shape[0], pointer(lengths, torch.int64)),
            *(values.data_ptr(), None if order is None else pointer(order, torch.int64)),
            *(gradient.data_ptr(), out.data_ptr()),
        )
    return out.to(a.dtype)


def _segment_mm(a: Tensor, b: Tensor, seglen: Tensor) -> Tensor:
    if _is_counted_on_gpu(a, seglen):
        return _grouped_mm(a, b, seglen, None)
    out = kernels.empty(a, (a.shape[0], b.shape[2]))
    for matrix, (start, length) in zip(b, _runs("segment_mm", a, seglen, b.shape[0]), strict=True):
        torch.mm(a.narrow(0, start, length), matrix, out=out.narrow(0, start, length))
    return out


def _segment_mm_fake(a: Tensor, b: Tensor, seglen: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]))


def _segment_mm_bwd_b(a: Tensor, grad: Tensor, seglen: Tensor) -> Tensor:
    if _is_counted_on_gpu(a, seglen):
        return _grouped_mm_bwd_b(a, grad, seglen, None)
    out = kernels.empty(a, (seglen.shape[0], a.shape[1], grad.shape[1]))
    for matrix, (start, length) in zip(out, _runs("segment_mm_bwd_b", a, seglen, out.shape[0]), strict=True):
        torch.mm(a.narrow(0, start, length).t(), grad.narrow(0, start, length), out=matrix)
    return out


def _segment_mm_bwd_b_fake(a: Tensor, grad: Tensor, seglen: Tensor) -> Tensor:
    return a.new_empty((seglen.shape[0], a.shape[1], grad.shape[1]))


def _ordered_runs(index: Tensor, matrices: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """The order that puts rows of one matrix together, its inverse (None where they stand so already), run lengths."""
    seglen = index.bincount(minlength=matrices)
    if seglen.shape[0] != matrices:
        raise KernelError(f"gqc.gather_mm: index names matrix {int(index.max())} of {matrices}")
    if bool((index[1:] >= index[:-1]).all()):
        return None, None, seglen
    order = index.argsort(stable=True)
    return order, order.argsort(), seglen


_run_order = ByIdentity(_ordered_runs)


def _run_order_on_gpu(index: Tensor, matrices: int) -> tuple[Tensor, Tensor]:
    """Order and lengths as :func:`_ordered_runs` gives them, without waiting for the GPU.

    The lengths do not add up where a matrix is none of those.
    """
    ordered, order = index.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(matrices + 1, dtype=index.dtype, device=index.device))
    return order, starts.diff()


def _rows(x: Tensor, order: Tensor) -> Tensor:
    return torch.index_select(x, 0, order, out=kernels.empty(x, (order.shape[0], *x.shape[1:])))


def _gather_mm(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    if _is_counted_on_gpu(a, index):
        order, seglen = _run_order_on_gpu(index, b.shape[0])
        return _grouped_mm(a, b, seglen, order)
    order, inverse, seglen = _run_order(index, b.shape[0])
    if order is None:
        return _segment_mm(a, b, seglen)
    return _rows(_segment_mm(_rows(a, order), b, seglen), inverse)


def _gather_mm_fake(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]))


def _gather_mm_bwd_b(a: Tensor, grad: Tensor, index: Tensor, num: int) -> Tensor:
    if _is_counted_on_gpu(a, index):
        order, seglen = _run_order_on_gpu(index, num)
        return _grouped_mm_bwd_b(a, grad, seglen, order)
    order, _, seglen = _run_order(index, num)
    if order is not None:
        a, grad = _rows(a, order), _rows(grad, order)
    return _segment_mm_bwd_b(a, grad, seglen)


def _gather_mm_bwd_b_fake(a: Tensor, grad: Tensor, index: Tensor, num: int | SymInt) -> Tensor:
    return a.new_empty((num, a.shape[1], grad.shape[1]))


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _segment_mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b, seglen = ctx.saved_tensors
    needs_a, needs_b, _ = ctx.needs_input_grad
    grad_a = torch.ops.gqc.segment_mm(grad, b.transpose(1, 2), seglen) if needs_a else None
    grad_b = torch.ops.gqc.segment_mm_bwd_b(a, grad, seglen) if needs_b else None
    return grad_a, grad_b, None


def _gather_mm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b, index = ctx.saved_tensors
    needs_a, needs_b, _ = ctx.needs_input_grad
    grad_a = torch.ops.gqc.gather_mm(grad, b.transpose(1, 2), index) if needs_a else None
    grad_b = torch.ops.gqc.gather_mm_bwd_b(a, grad, index, b.shape[0]) if needs_b else None
    return grad_a, grad_b, None


# Lengths may stay on the CPU, where DGL wants them.
define(
    "segment_mm(Tensor a, Tensor b, Tensor seglen) -> Tensor",
    kernel=_segment_mm,
    fake=_segment_mm_fake,
    one_device=False,
)
define(
    "segment_mm_bwd_b(Tensor a, Tensor grad, Tensor seglen) -> Tensor",
    kernel=_segment_mm_bwd_b,
    fake=_segment_mm_bwd_b_fake,
    one_device=False,
)
define("gather_mm(Tensor a, Tensor b, Tensor index) -> Tensor", kernel=_gather_mm, fake=_gather_mm_fake)
define(
    "gather_mm_bwd_b(Tensor a, Tensor grad, Tensor index, SymInt num) -> Tensor",
    kernel=_gather_mm_bwd_b,
    fake=_gather_mm_bwd_b_fake,
)
differentiate("segment_mm", _segment_mm_backward, _save_inputs)
differentiate("gather_mm", _gather_mm_backward, _save_inputs)
