"""Weighted sums of a few rows: PyTorch's values without the product, and rows of tables neither made nor saved."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.passes.report import REPLACED

BATCH, NEIGHBOURS, WIDTH, ROWS = 30, 4, 32, 50


class Attention(nn.Module):
    """Sums up neighbours: rows of a table, or what a layer makes of them."""

    def __init__(self, add_up: Callable[..., Tensor], layer: bool, **options: Any) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(ROWS, WIDTH, **options), nn.Linear(WIDTH, NEIGHBOURS)
        self.layer = nn.Linear(WIDTH, WIDTH) if layer else nn.Identity()
        self.add_up = add_up

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        around = self.layer(self.table(index)).view(len(x), -1, NEIGHBOURS, WIDTH)
        weights = torch.softmax(self.scores(x), 1)[:, None].expand(-1, around.shape[1], -1)
        return self.add_up(weights, around)


def by_column(weights: Tensor, around: Tensor) -> Tensor:
    return (weights[..., None] * around).sum(2)


def from_the_right(weights: Tensor, around: Tensor) -> Tensor:
    return (around * weights.unsqueeze(-1)).sum(dim=-2)


def outcome(model: nn.Module, x: Tensor, index: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = model(x, index)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out, x.grad, *(p.grad for p in model.parameters())]


def inputs(indices: int = 3 * NEIGHBOURS, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, WIDTH), torch.randint(ROWS, (batch, indices)).int()


def assert_near(values: list[Tensor], expected: list[Tensor]) -> None:
    """Compare relative to the largest value: sums may cancel."""
    for value, other in zip(values, expected, strict=True):
        if other is None:
            assert value is None
        else:
            torch.testing.assert_close(value, other, rtol=0, atol=1e-4 * other.detach().abs().max().item())


def compiled(model: nn.Module) -> tuple[list[str], Any]:
    """What the pass put in, and the compiled stage; values are those of the plain model."""
    plain = copy.deepcopy(model)
    fused = gqc.compile(model, bits=32, min_size=0)
    for batch in (BATCH, 7):
        arguments = inputs(batch=batch)
        for both in (plain, fused):
            both.zero_grad()
        assert_near(outcome(fused, *arguments), outcome(plain, *arguments))
    (stage,) = gqc.explain(fused).variants[0].stages
    (report,) = (r for r in stage.reports if r.name == "fuse_weighted_sums")
    assert {d.action for d in report.decisions} <= {REPLACED}
    return [d.reason for d in report.decisions], stage


@pytest.mark.parametrize("add_up", [by_column, from_the_right])
def test_rows_of_a_table_are_read_where_they_are(add_up: Callable[..., Tensor]) -> None:
    reasons, stage = compiled(Attention(add_up, layer=False))
    assert len(reasons) == 3
    assert "whose rows embedding picked" in reasons[0]
    assert "in the place of embedding" in reasons[1]
    assert "without the product" in reasons[2]
    assert "embedding" not in {s.name for s in stage.saved}
    assert stage.saved_bytes < BATCH * 3 * NEIGHBOURS * WIDTH * 4


def test_rows_that_are_computed() -> None:
    reasons, _ = compiled(Attention(by_column, layer=True))
    assert [reason.split(" ", 1)[0] for reason in reasons] == ["sums", "adds"]


def test_with_compressed_activations_less_is_saved() -> None:
    model = Attention(by_column, layer=False)
    arguments, saved = inputs(), {}
    for skip in ((), ("fuse_weighted_sums",)):
        other = gqc.compile(copy.deepcopy(model), bits=32, save_bits=gqc.SaveBits(2, min_size=0), skip=skip)
        assert_near(outcome(other, *arguments)[:1], outcome(copy.deepcopy(model), *arguments)[:1])
        saved[skip] = gqc.explain(other).variants[0].stages[0].saved_bytes
    assert saved[()] <= saved["fuse_weighted_sums",]


def test_tables_and_weights_that_are_not_trained() -> None:
    for frozen in ("table", "scores"):
        model = Attention(by_column, layer=False)
        getattr(model, frozen).requires_grad_(False)
        fused = gqc.compile(copy.deepcopy(model), bits=32, min_size=0)
        arguments = inputs()
        assert_near(outcome(fused, *arguments), outcome(model, *arguments))


def product_read_twice(weights: Tensor, around: Tensor) -> Tensor:
    product = weights[..., None] * around
    return product.sum(2) + product.amax(2)


def all_axes(weights: Tensor, around: Tensor) -> Tensor:
    return (weights[..., None] * around).sum((1, 2))


def one_weight_an_element(weights: Tensor, around: Tensor) -> Tensor:
    return (weights[..., None] * around * around).sum(2)


@pytest.mark.parametrize("add_up", [product_read_twice, all_axes, one_weight_an_element])
def test_other_sums_are_left(add_up: Callable[..., Tensor]) -> None:
    reasons, _ = compiled(Attention(add_up, layer=True))
    assert reasons == ["adds up vectors of each row"]


def test_what_gradients_of_tables_are_left() -> None:
    for options in ({"padding_idx": 3}, {"scale_grad_by_freq": True}):
        reasons, _ = compiled(Attention(by_column, layer=True, **options))
        assert [reason.split(" ", 1)[0] for reason in reasons] == ["sums"]


def test_an_index_out_of_range_raises_as_in_pytorch() -> None:
    model = gqc.compile(Attention(by_column, layer=False), bits=32, min_size=0)
    x, index = inputs()
    model(x, index)
    with pytest.raises(IndexError):
        model(x, index + ROWS)
