"""Products that the backward computes again: the same values, fewer bytes saved, and where they are saved instead."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import dgl
import pytest
import torch
from dgl.nn import GATConv
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.nodes import BACKWARD
from gqc.passes.report import REPLACED, Report

ROWS, WIDTH, HIDDEN = 64, 16, 24
APART = ("fuse_pointwise", "fuse_products")
"""Without these all additions keep their order."""


class Activated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 5)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.second(F.relu(self.first(x)))))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1), nn.Linear(HIDDEN, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(x * self.gate(x).expand_as(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.last = GATConv(WIDTH, HIDDEN // 3, 3), nn.Linear(HIDDEN, 5)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.last(self.heads(graph, x).flatten(1))


def outcome(model: nn.Module, *arguments: Any, **options: Any) -> tuple[list[Tensor | None], int, Report | None]:
    """Output and gradients, the bytes that are saved, and what the pass says."""
    compiled = gqc.compile(copy.deepcopy(model), min_size=0, seed=5, **options)
    out = compiled(*arguments)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    (out * weights).sum().backward()
    (stage,) = gqc.explain(compiled).variants[0].stages
    report = next((r for r in stage.reports if r.name == "recompute_products"), None)
    return [out, *(p.grad for p in compiled.parameters())], stage.saved_bytes, report


def assert_recomputed(model: nn.Module, *arguments: Any, saved: int) -> None:
    """With the pass everything is the same bit by bit, and ``saved`` bytes less cross to the backward."""
    values, nbytes, report = outcome(model, *arguments, skip=APART)
    others, nbytes_without, _ = outcome(model, *arguments, skip=(*APART, "recompute_products"))
    torch.testing.assert_close(values, others, rtol=0, atol=0)
    assert nbytes_without - nbytes == saved
    assert {(d.half, d.action, d.primitive) for d in report.decisions} == {(BACKWARD, REPLACED, "gemm")}
    close, nbytes, _ = outcome(model, *arguments)
    torch.testing.assert_close(close, values, rtol=0.1, atol=0.05)
    assert nbytes <= nbytes_without - saved


@pytest.mark.parametrize("activation", [F.gelu, lambda x: x * x], ids=["gelu", "squared"])
def test_what_an_activation_reads(activation: Callable[[Tensor], Tensor]) -> None:
    assert_recomputed(Activated(activation), torch.randn(ROWS, WIDTH), saved=4 * ROWS * HIDDEN)


def test_heads_of_attention() -> None:
    graph = dgl.add_self_loop(dgl.rand_graph(ROWS, 4 * ROWS))
    weight_and_scale = WIDTH * HIDDEN + 4  # which no gradient of the features needs
    assert_recomputed(Attention(), graph, torch.randn(ROWS, WIDTH), saved=4 * ROWS * HIDDEN - weight_and_scale)


@pytest.mark.parametrize(
    ("model", "rows", "options"),
    [
        (Activated(F.gelu), ROWS, {"bits": 32}),
        (Activated(F.gelu), HIDDEN, {}),  # a weight as large as the matrix
        (Activated(lambda x: x.cumsum(0) * x), ROWS, {"keep": ["second"]}),
        (Activated(lambda x: F.softmax(x, 1)), ROWS, {}),  # its backward reads its result
        (Activated(F.relu), ROWS, {}),  # a mask is enough
        (Gated(), ROWS, {}),  # the backward expands it
    ],
    ids=["full precision", "few rows", "kept", "softmax", "relu", "expanded"],
)
def test_what_is_not_computed_again(model: nn.Module, rows: int, options: dict[str, Any]) -> None:
    report = outcome(model, torch.randn(rows, WIDTH), **options)[2]
    assert report is not None
    assert not report.decisions


def test_a_long_contraction_is_not_repeated() -> None:
    model = nn.Sequential(nn.Linear(600, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 5))
    report = outcome(model, torch.randn(2 * 600, 600))[2]
    assert report is not None
    assert not report.decisions
