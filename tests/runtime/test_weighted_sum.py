"""Weighted sums of rows and their gradients against their references."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import weighted_sum as reference

gqc = torch.ops.gqc
ROWS = 40
WIDTHS = [1, 3, 16, 21, 64, 150]


def close(got: Tensor, compute: Callable[..., Tensor], *arguments: object) -> None:
    """Compare with the reference in float64, relative to what was summed."""
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]
    sizes = [a.abs() if isinstance(a, Tensor) and a.is_floating_point() else a for a in wide]
    error = (got.double() - compute(*wide)).abs()
    assert got.dtype is torch.float32
    assert got.is_contiguous()
    assert (error <= 1e-5 * compute(*sizes)).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(30, 4), (1,), (5, 3, 7), (6, 0), (0, 4)])
def test_equals_reference(isa: str, shape: tuple[int, ...], width: int) -> None:
    weights, x, table = torch.randn(shape), torch.randn(*shape, width), torch.randn(ROWS, width)
    grad, index = torch.randn(*shape[:-1], width), torch.randint(ROWS, shape)
    close(gqc.weighted_sum(weights, x), reference.weighted_sum, weights, x)
    for numbers in (index, index.int()):
        close(gqc.weighted_sum(weights, table, numbers), reference.weighted_sum, weights, table, numbers)
        dots = gqc.weighted_sum_bwd_weights(table, numbers, grad)
        close(dots, reference.weighted_sum_bwd_weights, table, numbers, grad)
        close(gqc.add_rows(grad, numbers, ROWS, weights), reference.add_rows, grad, numbers, ROWS, weights)
        close(gqc.add_rows(x, numbers, ROWS), reference.add_rows, x, numbers, ROWS)


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    weights, grad, index = torch.randn(3000, 5), torch.randn(3000, 40), torch.randint(ROWS, (3000, 5))
    table = torch.randn(ROWS, 40)

    def results() -> list[Tensor]:
        rows = gqc.add_rows(grad, index, ROWS, weights)
        return [rows, gqc.weighted_sum(weights, table, index), gqc.weighted_sum_bwd_weights(table, index, grad)]

    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        found.append(results())
    torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_operands_with_other_strides() -> None:
    weights, x, table = torch.randn(4, 30).t(), torch.randn(64, 30, 4).permute(1, 2, 0), torch.randn(64, ROWS).t()
    grad, index = torch.randn(64, 30).t(), torch.randint(ROWS, (4, 30)).t()
    close(gqc.weighted_sum(weights, x), reference.weighted_sum, weights, x)
    close(gqc.weighted_sum(weights, table, index), reference.weighted_sum, weights, table, index)
    dots = gqc.weighted_sum_bwd_weights(table, index, grad)
    close(dots, reference.weighted_sum_bwd_weights, table, index, grad)
    close(gqc.add_rows(grad, index, ROWS, weights), reference.add_rows, grad, index, ROWS, weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_run_as_torch_ops(dtype: torch.dtype) -> None:
    weights, table, index = torch.randn(6, 4).to(dtype), torch.randn(ROWS, 5).to(dtype), torch.randint(ROWS, (6, 4))
    grad = torch.randn(6, 5).to(dtype)
    calls = [
        (gqc.weighted_sum, reference.weighted_sum, (weights, table, index)),
        (gqc.weighted_sum_bwd_weights, reference.weighted_sum_bwd_weights, (table, index, grad)),
        (gqc.add_rows, reference.add_rows, (grad, index, ROWS, weights)),
    ]
    for op, compute, arguments in calls:
        torch.testing.assert_close(op(*arguments), compute(*arguments), rtol=0, atol=0)


def test_shapes_without_values() -> None:
    with torch._subclasses.FakeTensorMode():
        weights, x, table, grad = (torch.empty(shape) for shape in ((5, 3, 7), (5, 3, 7, 9), (ROWS, 9), (5, 3, 9)))
        index = torch.empty(5, 3, 7, dtype=torch.int64)
        assert gqc.weighted_sum(weights, x).shape == gqc.weighted_sum(weights, table, index).shape == (5, 3, 9)
        assert gqc.weighted_sum_bwd_weights(table, index, grad).shape == (5, 3, 7)
        assert gqc.add_rows(grad, index, ROWS, weights).shape == gqc.add_rows(x, index, ROWS).shape == (ROWS, 9)


def test_wrong_arguments() -> None:
    weights, table, index, grad = (
        torch.randn(6, 4),
        torch.randn(ROWS, 5),
        torch.randint(ROWS, (6, 4)),
        torch.randn(6, 5),
    )
    for wrong in (index - ROWS, index + ROWS):
        for call in (
            lambda i: gqc.weighted_sum(weights, table, i),
            lambda i: gqc.weighted_sum_bwd_weights(table, i, grad),
            lambda i: gqc.add_rows(grad, i, ROWS, weights),
        ):
            with pytest.raises(KernelError, match="out of range"):
                call(wrong)
    with pytest.raises(KernelError, match="weighted_sum takes weights"):
        gqc.weighted_sum(weights, torch.randn(6, 5, 4))
    with pytest.raises(KernelError, match="weighted_sum takes weights"):
        gqc.weighted_sum(weights, table, index[:, :3])
    with pytest.raises(KernelError, match="takes a table"):
        gqc.weighted_sum_bwd_weights(table, index, grad[:, :3])
    with pytest.raises(KernelError, match="takes a gradient"):
        gqc.add_rows(grad, index, ROWS)
    with pytest.raises(KernelError, match="int32 or int64"):
        gqc.weighted_sum(weights, table, index.float())
    with pytest.raises(KernelError, match="one dtype"):
        gqc.weighted_sum(weights.double(), table, index)
    with pytest.raises(KernelError, match="no gradient"):
        gqc.weighted_sum(weights.requires_grad_(), table, index)
