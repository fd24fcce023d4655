"""Rows projected at random against their reference, and against what EXACT proves of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import project_rows as reference

gqc = torch.ops.gqc


def draw_seed() -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,))


@pytest.mark.parametrize(("shape", "kept"), [((50, 40), 5), ((3, 7, 33), 33), ((65,), 16), ((9, 1), 1), ((0, 6), 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_reference(backend: str, shape: tuple[int, ...], kept: int, dtype: torch.dtype) -> None:
    """Sums in another order, of terms at most |x| / sqrt(kept), and then rounded to the dtype."""
    x, seed = torch.randn(shape).to(dtype), draw_seed()
    y = gqc.project_rows(x, kept, seed, 3)
    back = gqc.unproject_rows(y, shape[-1], seed, 3)
    for got, want, terms in (
        (y, reference.project_rows(x, kept, seed, 3), x.float().abs().sum(-1, keepdim=True) * kept**-0.5),
        (back, reference.unproject_rows(y, shape[-1], seed, 3), y.float().abs().sum(-1, keepdim=True) * kept**-0.5),
    ):
        assert got.dtype is dtype
        assert got.shape == want.shape
        off = 2e-5 * terms + torch.finfo(dtype).eps * want.float().abs()
        assert ((got.float() - want.float()).abs() <= off).all()


def test_projection_is_drawn_bit_for_bit(backend: str) -> None:
    seed = draw_seed()
    for node in (0, 1):
        got = gqc.project_rows(torch.eye(37), 10, seed, node)
        torch.testing.assert_close(got, reference.signs(37, 10, seed, node).float(), rtol=0, atol=0)


def test_is_unbiased_with_the_known_variance() -> None:
    """Over n draws: means within 6 standard errors; squared errors sum to |x|^2 (W - 1) / r within 6 of theirs."""
    width, kept, n = 20, 4, 4000
    x = torch.randn(1, width)
    step = torch.randint(2**62, ())
    backs = []
    for draw in range(n):
        seed = torch.stack([step, torch.tensor(draw)])
        backs.append(gqc.unproject_rows(gqc.project_rows(x, kept, seed, 0), width, seed, 0))
    errors = torch.cat(backs).double() - x
    of_element = ((x.double().square().sum() - x.double().square()) / kept).squeeze(0)
    assert (errors.mean(0).abs() < 6 * (of_element / n).sqrt()).all()
    squares = errors.square().sum(1)
    assert abs(squares.mean() - of_element.sum()) < 6 * squares.std() / n**0.5


def test_refusals_say_what_is_wrong() -> None:
    x, seed = torch.randn(4, 6), draw_seed()
    with pytest.raises(KernelError, match="project_rows: 7 elements cannot be kept of rows of 6: keep 1 to 6"):
        gqc.project_rows(x, 7, seed, 0)
    with pytest.raises(KernelError, match="unproject_rows: 6 elements cannot be kept of rows of 5"):
        gqc.unproject_rows(x, 5, seed, 0)
    with pytest.raises(KernelError, match=r"takes rows \[\*, W\] and got a scalar"):
        gqc.project_rows(torch.tensor(1.0), 1, seed, 0)
    with pytest.raises(KernelError, match="seed has 1 elements"):
        gqc.project_rows(x, 3, seed[:1], 0)
    with pytest.raises(KernelError, match=r"knows float32, bfloat16 and float16 and got torch\.float64"):
        gqc.project_rows(x.double(), 3, seed, 0)


def test_opcheck() -> None:
    x, seed = torch.randn(3, 5, 7), draw_seed()
    torch.library.opcheck(gqc.project_rows.default, (x, 2, seed, 1))
    torch.library.opcheck(gqc.unproject_rows.default, (torch.randn(5, 2), 7, seed, 1))
