"""Dropout on gqc's generator: the same distribution, a mask of one bit an element, eager's numbers with bits=32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.report import REPLACED


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.weight, 0.25, self.training)


def replaced(compiled: nn.Module) -> int:
    (stage,) = gqc.explain(compiled).variants[-1].stages
    return sum(r.count()[REPLACED] for r in stage.reports if r.name == "draw_masks")


def test_forward_and_backward_drop_the_same_elements():
    compiled = gqc.compile(Dropped())
    out = compiled(torch.ones(1000, 64))
    torch.testing.assert_close(out.detach().unique(), torch.tensor([0, 4 / 3]))
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    out.sum().backward()
    torch.testing.assert_close(compiled.weight.grad, out.detach().sum(0))
    assert replaced(compiled) == 1


def test_mask_is_saved_in_bits():
    compiled = gqc.compile(Dropped())
    compiled(torch.ones(1024, 64))
    (stage,) = gqc.explain(compiled).variants[0].stages
    masks = [s for s in stage.saved if s.dtype is torch.uint8]
    assert [m.nbytes() for m in masks] == [1024 * 64 // 8]


def test_two_dropouts_of_one_step_and_two_steps_differ():
    class Twice(Dropped):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x * self.weight
            return F.dropout(x, 0.5), F.dropout(x, 0.5)

    compiled = gqc.compile(Twice())
    x = torch.ones(100, 64)
    draws = [*compiled(x), *compiled(x)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_eval_and_full_precision_keep_eager_values():
    model = Dropped()
    x = torch.randn(50, 64)
    torch.testing.assert_close(gqc.compile(model).eval()(x), x)
    model.train()
    compiled = gqc.compile(model, bits=32)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)
    assert replaced(compiled) == 0
