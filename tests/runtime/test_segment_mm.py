"""Products of row runs and of single rows with a stack of matrices, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import segment_mm as reference

gqc = torch.ops.gqc
RUNS = [[3, 0, 5], [0, 0, 0], [7], [1] * 20, [0, 400, 3]]


def with_gradients(product: Callable[..., Tensor], a: Tensor, b: Tensor, third: Tensor) -> list[Tensor]:
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    out = product(a, b, third)
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    return [out, *torch.autograd.grad((out * weight).sum(), (a, b))]


@pytest.mark.parametrize("lengths", RUNS, ids=str)
@pytest.mark.parametrize("seg_dtype", [torch.int32, torch.int64])
def test_segment_mm_and_its_gradients(lengths: list[int], seg_dtype: torch.dtype) -> None:
    seglen = torch.tensor(lengths, dtype=seg_dtype)
    a, b = torch.randn(sum(lengths), 6), torch.randn(len(lengths), 6, 4)
    got = with_gradients(gqc.segment_mm, a, b, seglen)
    torch.testing.assert_close(got, with_gradients(reference.segment_mm, a, b, seglen))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 50])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_mm_and_its_gradients(rows: int, is_sorted: bool, index_dtype: torch.dtype) -> None:
    index = torch.randint(0, 5, (rows,), dtype=index_dtype)
    index = index.sort().values if is_sorted else index
    a, b = torch.randn(rows, 6), torch.randn(5, 6, 4)
    got = with_gradients(gqc.gather_mm, a, b, index)
    torch.testing.assert_close(got, with_gradients(reference.gather_mm, a, b, index))


def test_views_are_read_as_they_stand() -> None:
    a, b = torch.randn(6, 10).t(), torch.randn(4, 6, 2).transpose(1, 2)[:, :, :6].transpose(1, 2)
    seglen = torch.tensor([4, 0, 1, 5])
    got = with_gradients(gqc.segment_mm, a, b, seglen)
    torch.testing.assert_close(got, with_gradients(reference.segment_mm, a, b, seglen))
    broadcast = torch.randn(1, 6).expand(10, 6)
    torch.testing.assert_close(gqc.segment_mm(broadcast, b, seglen), reference.segment_mm(broadcast, b, seglen))


def test_refusals_say_what_is_wrong() -> None:
    a, b = torch.randn(5, 3), torch.randn(2, 3, 4)
    with pytest.raises(KernelError, match=r"seglen \[1, 2\] must .* add up to the 5 rows"):
        gqc.segment_mm(a, b, torch.tensor([1, 2]))
    with pytest.raises(KernelError, match=r"one length for each of 2 matrices"):
        gqc.segment_mm(a, b, torch.tensor([1, 2, 2]))
    with pytest.raises(KernelError, match=r"index names matrix 2 of 2"):
        gqc.gather_mm(a, b, torch.tensor([0, 1, 2, 0, 0]))


def test_opcheck() -> None:
    a, b = torch.randn(6, 3, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    seglen, index, grad = torch.tensor([4, 2]), torch.tensor([1, 0, 1, 1, 0, 0]), torch.randn(6, 4)
    torch.library.opcheck(gqc.segment_mm.default, (a, b, seglen))
    torch.library.opcheck(gqc.gather_mm.default, (a, b, index))
    torch.library.opcheck(gqc.segment_mm_bwd_b.default, (a.detach(), grad, seglen))
    torch.library.opcheck(gqc.gather_mm_bwd_b.default, (a.detach(), grad, index, 2))
