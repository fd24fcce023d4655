"""float16 models, by autocast and by ``half()``, with the scaling of gradients that goes with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc

dgl = pytest.importorskip("dgl")
HALF = torch.float16


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dgl.nn.GraphConv(24, 32)
        self.last = dgl.nn.GraphConv(32, 5)

    def forward(self, g: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.last(g, F.relu(self.first(g, x)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.last = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.first(x)), 0.2, self.training))


MODELS = {"GCN": GCN, "MLP": MLP}


def arguments(name: str) -> tuple[Any, ...]:
    graph = dgl.add_self_loop(dgl.rand_graph(300, 2000))
    return (graph, torch.randn(300, 24)) if name == "GCN" else (torch.randn(300, 24),)


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    return gqc.compile(model, min_size=0, keep_output_layer=False, rounding="nearest", **options)


def quantized(model: nn.Module) -> list[str]:
    (variant,) = gqc.explain(model).variants
    assert not gqc.state_of(model).fallbacks
    return [d.primitive for stage in variant.stages for d in stage.decisions("quantized")]


def step(model: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    """The result, and gradients that are not too small for float16: what they sum over the rows does not cancel."""
    out = model(*args)
    (out.float() * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


def assert_near(got: Tensor, want: Tensor) -> None:
    """Within an eighth of the norm; a scale that is a fifth off is farther.

    INT8 rounds to 1/127 of the largest element. That is about 2% of a hidden value, so about 1% of ReLU's masks flip,
    at hidden values near 0. A flip adds or drops a whole term of the sums over rows that are the first layer's
    gradients. Flips are independent, so they come to √1% = 10% of the root of the terms' squares, which the sum is
    larger than as long as its terms do not cancel: see ``step``.
    """
    assert got.isfinite().all()
    error = (got.float() - want).norm() / want.norm()
    assert error <= 0.125


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("halved", ["autocast", "half"])
def test_products_are_quantized_and_results_near_those_of_float32(name: str, halved: str, bits: int) -> None:
    exact, args = MODELS[name]().eval(), arguments(name)
    low = copy.deepcopy(exact)
    want, want_gradients = step(exact, args)
    model = compiled(low.half() if halved == "half" else low, bits=bits)
    if halved == "half":
        got, gradients = step(model, (*args[:-1], args[-1].half()))
    else:
        with torch.autocast("cpu", HALF):
            got, gradients = step(model, args)
    assert got.dtype is (torch.float32 if (name, halved) == ("GCN", "autocast") else HALF)  # norms are float32
    assert len(quantized(model)) >= 5
    if bits == 8:
        assert_near(got, want)
        for parameter, gradient in gradients.items():
            assert gradient.dtype is low.get_parameter(parameter).dtype
            assert_near(gradient, want_gradients[parameter])


@pytest.mark.parametrize("name", MODELS)
def test_what_overflows_is_never_hidden(name: str) -> None:
    """A hidden value beyond 65,504 is Inf in float16, so the scale of its tensor is NaN."""
    model, args = MODELS[name]().half().eval(), arguments(name)
    int8 = compiled(model)
    x = args[-1].half()
    assert int8(*args[:-1], x).isfinite().all()
    assert int8(*args[:-1], x * 20_000).isnan().all()


def test_a_gradient_scaler_skips_steps_that_overflow_and_then_trains() -> None:
    model = compiled(MLP())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-8, growth_interval=1000)
    x, start = torch.randn(300, 24), copy.deepcopy(model.state_dict())
    y = x[:, :5].argmax(1)
    losses, scales = [], []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", HALF):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
        if scales[-1] > 2.0**24:  # no gradient can have been finite
            assert all(torch.equal(p, start[name]) for name, p in model.state_dict().items())
    assert scales[0] == 2.0**32
    assert scales[-1] == scales[10] > 1
    assert losses[-1] < 0.6 * losses[0]
    assert {"gemm"} == set(quantized(model))


def test_dropout_of_halves_draws_from_the_generator_of_rounding() -> None:
    model = compiled(MLP()).half()
    with torch.no_grad():
        model(torch.randn(300, 24).half())
    (variant,) = gqc.explain(model).variants
    assert [d.primitive for stage in variant.stages for d in stage.decisions("replaced")] == ["dropout"]
