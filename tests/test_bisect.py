"""``gqc.bisect`` finds the primitives that do the harm."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.bisect import smallest


class Fragile(nn.Module):
    """Three layers, of which the second meets one huge feature that leaves no resolution for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fragile, self.last = (nn.Linear(a, b, bias=False) for a, b in ((64, 64), (65, 64), (64, 8)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        outlier = torch.zeros_like(h[:, :1])
        outlier[0] = 1e4
        return self.last(self.fragile(torch.cat([h, outlier], 1)).relu())


def distance(model: nn.Module, x: Tensor, truth: Tensor) -> Tensor:
    with torch.no_grad():
        return F.mse_loss(model(x)[1:], truth[1:])


def trained(model: nn.Module, x: Tensor, truth: Tensor) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x)[1:], truth[1:]).backward()
        optimizer.step()
    return distance(model.eval(), x, truth).item()


def test_the_fragile_layer_is_found():
    torch.manual_seed(0)
    model, x = Fragile(), torch.randn(300, 64)
    truth = model(x).detach()
    before = copy.deepcopy(model.state_dict())
    found = gqc.bisect(model, distance, (x, truth), gqc.Policy(keep_output_layer=False, min_size=0), progress=False)
    assert [(n.module, n.primitive, n.half) for n in found.nodes] == [("fragile", "gemm", "forward")]
    assert found.exact == 0
    assert found.explained >= 0.8 * found.quantized > 0
    assert found.suspects == 3
    assert "fragile" in str(found)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_backward_counts_if_the_loss_trains():
    torch.manual_seed(0)
    model, x = gqc.compile(Fragile(), min_size=0), torch.randn(300, 64)
    found = gqc.bisect(model, trained, (x, torch.randn(300, 8)), progress=False, repeats=2)
    assert found.suspects > 3
    assert 0 < len(found.nodes) < found.suspects


def test_nothing_is_suspect_where_nothing_is_quantized():
    policy = gqc.Policy(skip=("quantize_operands",), min_size=0, keep_output_layer=False)
    model, x = nn.Linear(64, 64), torch.randn(300, 64)
    found = gqc.bisect(model, distance, (x, torch.randn(300, 64)), policy, progress=False)
    assert (found.suspects, found.nodes) == (0, ())


def test_no_gap():
    model, x = nn.Linear(64, 64), torch.randn(300, 64)
    found = gqc.bisect(model, lambda m, x: m(x).detach().mul(0).sum(), (x,), progress=False)
    assert found.nodes == ()
    assert "no gap" in str(found)


def test_smallest_set_of_two():
    items = tuple(range(13))
    tried = []

    def holds(nodes):
        tried.append(nodes)
        return {3, 11} <= set(nodes)

    assert smallest(items, holds) == (3, 11)
    assert len(tried) < 60


@pytest.mark.parametrize(
    ("loss", "options", "error", "text"),
    [
        (lambda m, x: m(x), {}, gqc.GqcError, "not one number"),
        (lambda m, x: 0.0, {}, gqc.GqcError, "no call of the model was compiled"),
        (lambda m, x: m(x).detach().sum() * math.nan, {}, gqc.GqcError, "no gap of numbers"),
        (lambda m, x: str(m(x).sum().item()), {}, gqc.GqcError, "loss_fn returned a str, not one number"),
        (lambda m, x: 0.0, {"share": 0}, ValueError, "share=0"),
        (lambda m, x: 0.0, {"share": "all"}, ValueError, "share='all'"),
        (lambda m, x: 0.0, {"repeats": 0}, ValueError, "repeats=0"),
        (lambda m, x: 0.0, {"repeats": 1.5}, ValueError, "repeats=1.5"),
        (lambda m, x: 0.0, {"policy": "int8"}, gqc.PolicyError, "policy='int8'"),
        (None, {}, TypeError, "loss_fn=None must be a function"),
    ],
)
def test_errors(loss, options, error, text):
    with pytest.raises(error, match=text):
        gqc.bisect(nn.Linear(64, 64), loss, (torch.randn(300, 64),), progress=False, **options)


def test_what_is_given_otherwise():
    x, model = torch.randn(300, 64), nn.Linear(64, 64)
    with pytest.raises(TypeError, match=r"as a tuple, such as \(graph, x\), not a Tensor"):
        gqc.bisect(model, distance, x, progress=False)
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, not int"):
        gqc.bisect(3, distance, (x,), progress=False)
    with pytest.raises(gqc.GqcError, match=r"inputs cannot be copied for each run .*: detach\(\) them"):
        gqc.bisect(model, distance, (x * x.clone().requires_grad_(), x), progress=False)
    model.hidden = model(x)
    with pytest.raises(gqc.GqcError, match="the model holds a tensor with gradient history in its attribute 'hidden'"):
        gqc.bisect(model, distance, (x, x), progress=False)
