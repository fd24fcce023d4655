"""Moving row factors to the narrow side of a GEMM changes no value and applies only where it pays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.passes.report import REPLACED


class Scaled(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out))

    def forward(self, x: Tensor, degree: Tensor) -> Tensor:
        return self.combine(x, degree.float().rsqrt().unsqueeze(1))

    def combine(self, x: Tensor, factors: Tensor) -> Tensor:
        return (x * factors) @ self.weight


class FactorsFirst(Scaled):
    def combine(self, x: Tensor, factors: Tensor) -> Tensor:
        return (factors * x) @ self.weight


class ReadTwice(Scaled):
    def combine(self, x: Tensor, factors: Tensor) -> Tensor:
        scaled = x * factors
        return scaled @ self.weight + scaled.sum()


class ColumnFactors(Scaled):
    def combine(self, x: Tensor, factors: Tensor) -> Tensor:
        return (x * self.weight[:, :1].t()) @ self.weight


def moved(compiled: nn.Module) -> int:
    (stage,) = gqc.explain(compiled).variants[0].stages
    return sum(r.count()[REPLACED] for r in stage.reports if r.name == "scale_after_gemm")


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Scaled(40, 8), 1),
        (FactorsFirst(40, 8), 1),
        (Scaled(8, 40), 0),
        (Scaled(8, 8), 0),
        (ReadTwice(40, 8), 0),
        (ColumnFactors(40, 8), 0),
    ],
    ids=["narrows", "factors first", "widens", "square", "read twice", "column factors"],
)
@pytest.mark.parametrize("input_grad", [False, True])
def test_values_and_gradients(model, count, input_grad):
    compiled = gqc.compile(copy.deepcopy(model), bits=32)
    for rows in (30, 50):
        x, degree = torch.randn(rows, model.weight.shape[0]), torch.randint(1, 9, (rows,))
        results = []
        for m in (model, compiled):
            leaf = x.clone().requires_grad_(input_grad)
            m.zero_grad()
            out = m(leaf, degree)
            out.sin().sum().backward()
            results.append((out.detach(), m.weight.grad, leaf.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert moved(compiled) == count
