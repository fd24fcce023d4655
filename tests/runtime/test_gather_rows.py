"""Rows of a table against their reference."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import gather_rows as reference

gqc = torch.ops.gqc


@pytest.mark.parametrize("shape", [(50, 7), (50,), (50, 2, 3)])
@pytest.mark.parametrize("index_shape", [(30,), (5, 6), (), (0,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_reference(shape: tuple[int, ...], index_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table, index = torch.randn(shape).to(dtype), torch.randint(50, index_shape)
    for chosen in (index, index.int(), index.int().t() if index.dim() == 2 else index):
        got = gqc.gather_rows(table, chosen)
        assert got.is_contiguous()
        torch.testing.assert_close(got, reference.gather_rows(table, chosen), rtol=0, atol=0)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = gqc.gather_rows(mode.from_tensor(table), mode.from_tensor(index))
    assert (fake.shape, fake.dtype) == ((*index_shape, *shape[1:]), dtype)


def test_wrong_arguments() -> None:
    with pytest.raises(KernelError, match="int32 or int64"):
        gqc.gather_rows(torch.randn(4, 2), torch.zeros(3))
    with pytest.raises(IndexError):
        gqc.gather_rows(torch.randn(4, 2), torch.tensor([4]))
