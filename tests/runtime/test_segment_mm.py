"""Products of row runs and of single rows with a stack of matrices, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import segment_mm as reference
from tests.runtime.backends import CUDA, on_backend

gqc = torch.ops.gqc
RUNS = [[3, 0, 5], [0, 0, 0], [7], [1] * 20, [0, 400, 3]]


def with_gradients(product: Callable[..., Tensor], a: Tensor, b: Tensor, third: Tensor) -> list[Tensor]:
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    out = product(a, b, third)
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    return [out, *torch.autograd.grad((out * weight).sum(), (a, b))]


def assert_near(got: list[Tensor], want: list[Tensor]) -> None:
    torch.testing.assert_close(got, [x.float() for x in want], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", RUNS, ids=str)
@pytest.mark.parametrize("seg_dtype", [torch.int32, torch.int64])
def test_segment_mm_and_its_gradients(backend: str, lengths: list[int], seg_dtype: torch.dtype) -> None:
    seglen = torch.tensor(lengths, dtype=seg_dtype)
    a, b = torch.randn(sum(lengths), 6), torch.randn(len(lengths), 6, 4)
    got = with_gradients(gqc.segment_mm, a, b, seglen)
    assert_near(got, with_gradients(reference.segment_mm, a.double(), b.double(), seglen))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 50])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_mm_and_its_gradients(backend: str, rows: int, is_sorted: bool, index_dtype: torch.dtype) -> None:
    index = torch.randint(0, 5, (rows,), dtype=index_dtype)
    index = index.sort().values if is_sorted else index
    a, b = torch.randn(rows, 6), torch.randn(5, 6, 4)
    got = with_gradients(gqc.gather_mm, a, b, index)
    assert_near(got, with_gradients(reference.gather_mm, a.double(), b.double(), index))


@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (3, 130), (70, 64), (65, 17)])
def test_products_of_more_than_a_tile(backend: str, inner: int, columns: int) -> None:
    lengths = [5, 0, 300, 1, 128, 129, 0]
    a, b = torch.randn(sum(lengths), inner), torch.randn(len(lengths), inner, columns)
    seglen, index = torch.tensor(lengths), torch.randint(0, len(lengths), (sum(lengths),))
    for product, of, third in (
        (gqc.segment_mm, reference.segment_mm, seglen),
        (gqc.gather_mm, reference.gather_mm, index),
    ):
        got, want = with_gradients(product, a, b, third), with_gradients(of, a.double(), b.double(), third)
        assert_near(got, want)


def test_half_precision_is_computed_in_float32_on_a_gpu() -> None:
    a, b, seglen = torch.randn(9, 6).bfloat16(), torch.randn(2, 6, 4).bfloat16(), torch.tensor([3, 6])
    with on_backend(CUDA):
        got = gqc.segment_mm(a, b, seglen)
    want = reference.segment_mm(a.float(), b.float(), seglen)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2)


def test_runs_that_do_not_fit_give_nan_on_a_gpu() -> None:
    """Their lengths are read by kernels only, which cannot raise."""
    a, b = torch.randn(300, 3), torch.randn(2, 3, 4)
    with on_backend(CUDA):
        for lengths in ([1, 2], [-1, 301], [300, 1], [2**40, 0]):
            assert gqc.segment_mm(a, b, torch.tensor(lengths)).isnan().all()
            assert gqc.segment_mm_bwd_b(a, torch.ones(300, 4), torch.tensor(lengths)).isnan().all()
        for wrong in (2, -1):
            index = torch.zeros(300, dtype=torch.int64)
            index[7] = wrong
            assert gqc.gather_mm(a, b, index).isnan().all()
            assert gqc.gather_mm_bwd_b(a, torch.ones(300, 4), index, 2).isnan().all()
        with pytest.raises(KernelError, match="3 lengths for 2 matrices"):
            gqc.segment_mm(a, b, torch.tensor([100, 100, 100]))


def test_views_are_read_as_they_stand(backend: str) -> None:
    a, b = torch.randn(6, 10).t(), torch.randn(4, 6, 2).transpose(1, 2)[:, :, :6].transpose(1, 2)
    seglen = torch.tensor([4, 0, 1, 5])
    got = with_gradients(gqc.segment_mm, a, b, seglen)
    assert_near(got, with_gradients(reference.segment_mm, a.double(), b.double(), seglen))
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
