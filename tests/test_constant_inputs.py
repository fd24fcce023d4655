"""``remember_inputs``: the int8 copy of features is made once, as long as they stay the same."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gqc
from gqc.errors import PolicyError, RewriteError

ROUNDS = ("gqc::quantize", "gqc::pointwise", "gqc::quantize_qgemm_pointwise")


class Calls(TorchDispatchMode):
    """Counts the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count[op._schema.name] += 1
        return op(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.dropout = dropout

    def forward(self, x):
        x = F.dropout(x, self.dropout, self.training)
        return self.last(F.relu(self.second(F.relu(self.first(x)))))


def compiled(**options) -> nn.Module:
    torch.manual_seed(0)
    return gqc.compile(Net(options.pop("dropout", 0.0)), min_size=0, **options)


def losses(model: nn.Module, x: torch.Tensor, steps: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def rounded(model: nn.Module, x: torch.Tensor) -> int:
    """How many calls round in one forward."""
    with Calls() as calls:
        model(x)
    return sum(calls.count[name] for name in ROUNDS)


def test_training_is_the_same():
    x = torch.randn(50, 16)
    assert losses(compiled(rounding="nearest", remember_inputs=True), x) == losses(compiled(rounding="nearest"), x)


def test_features_are_rounded_once_until_they_change():
    x = torch.randn(50, 16)
    model = compiled(remember_inputs=True)
    model(torch.randn(50, 16))  # compiles
    first = rounded(model, x)
    again = rounded(model, x)
    assert 0 < again < first
    x.add_(1)
    assert rounded(model, x) == first
    assert rounded(model, x) == again
    assert rounded(model, torch.randn(70, 16)) == first
    (report,) = [r for r in gqc.explain(model).variants[0].stages[0].reports if r.name == "remember_inputs"]
    assert report.decisions
    assert all("depends on inputs alone" in d.reason for d in report.decisions)


def test_what_is_computed_is_that_of_the_new_values():
    x = torch.randn(50, 16)
    model, plain = compiled(rounding="nearest", remember_inputs=True), compiled(rounding="nearest")
    for _ in range(3):
        torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)
        x.mul_(-2)


def test_dropout_is_drawn_at_each_call():
    x = torch.randn(50, 16)
    model = compiled(dropout=0.5, remember_inputs=True)
    a, b = model(x), model(x)
    assert not torch.equal(a, b)


def test_features_with_a_gradient_are_not_remembered():
    x = torch.randn(50, 16, requires_grad=True)
    model = compiled(remember_inputs=True)
    model(x)  # compiles
    first, again = rounded(model, x), rounded(model, x)
    assert first == again
    model(x).sum().backward()
    assert x.grad is not None


def test_what_excludes_it_is_refused():
    with pytest.raises(PolicyError, match="exclude one another"):
        compiled(remember_inputs=True, cuda_graph=True)
    with pytest.raises(PolicyError, match="remember_inputs"):
        compiled(remember_inputs="yes")
    with pytest.raises(RewriteError, match="remember_inputs=False"):
        gqc.rewrite(Net(), (torch.randn(5, 16),), remember_inputs=True)
