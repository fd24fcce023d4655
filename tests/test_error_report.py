"""What ``gqc.error_report`` measures is true, and measuring changes nothing."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from rich.console import Console
from same import nothing_lost
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.exact_form import EXACT_FORMS
from gqc.passes.int8_form import FORMS, INT4_FORMS


class MLP(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.norm(self.first(x))), self.dropout, self.training))


class Positive(MLP):
    """The number of rows of its last layer depends on data, which splits it around an island."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h[(h[:, 0] > 0).nonzero().squeeze(1)])


def relative(got: Tensor, true: Tensor) -> float:
    return ((got - true).norm() / true.norm()).item()


def rounded(x: Tensor, bits: int = 8) -> Tensor:
    scale = x.abs().max() / (2 ** (bits - 1) - 1)
    return torch.floor(x / scale + 0.5) * scale


# At 4 bits sums are small integers, many of them half way between two levels, where the last bit decides.
@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.02), (4, 0.1)])
def test_errors_are_those_of_rounding(bits, tolerance):
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False))
    x = torch.randn(500, 32)
    compiled = gqc.compile(
        model, bits=bits, rounding="nearest", keep_output_layer=False, min_size=0, float_storage="fp32"
    )
    with torch.no_grad():
        report = gqc.error_report(compiled, x)
        hidden = rounded(x, bits) @ rounded(model[0].weight, bits).t()
        out = rounded(hidden.relu(), bits) @ rounded(model[2].weight, bits).t()
        unrounded = hidden.relu() @ model[2].weight.t()
        exact = model(x)
    first, last = sorted(report.of("gemm"), key=lambda n: n.module)
    assert first.own == first.relative == pytest.approx(relative(hidden, x @ model[0].weight.t()), rel=tolerance)
    assert last.relative == pytest.approx(relative(out, exact), rel=tolerance)
    assert last.own == pytest.approx(relative(out, unrounded), rel=tolerance)
    assert len(report.of("operand")) == 4
    assert all(0 < n.own < 0.02 * 2 ** (8 - bits) for n in report.of("operand"))


def test_gradients_are_named_and_worst_comes_first():
    report = gqc.error_report(gqc.compile(MLP(dropout=0.3), min_size=0), torch.randn(400, 32))
    assert {n.parameter for n in report.of("gradient")} >= {"first.weight", "last.weight", "norm.bias"}
    errors = [n.relative for n in report.nodes]
    assert errors == sorted(errors, reverse=True)
    assert all(n.cosine > 0.9 for n in report.nodes if n.parameter != "first.bias")  # whose gradient batch norm cancels
    assert "gradient of first.weight" in str(report)
    narrow = Console(width=70, file=io.StringIO())
    narrow.print(report)
    assert "…" not in narrow.file.getvalue()


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_primitive_that_is_a_gradient_says_so():
    report = gqc.error_report(gqc.compile(Product(), bits=32), torch.randn(400, 8))
    assert "gemm, gradient of weight" in str(report)


def test_without_quantization_nothing_differs():
    report = gqc.error_report(gqc.compile(MLP(dropout=0.3), bits=32), torch.randn(400, 32))
    assert report.nodes
    assert all(n.relative == 0 and n.own is None for n in report.nodes)


def test_every_quantized_op_has_an_exact_form():
    assert {form.target for form in (*FORMS.values(), *INT4_FORMS.values())} <= EXACT_FORMS.keys()


@pytest.mark.parametrize("seed", [None, 5])
def test_nothing_changes(seed: int | None):
    model = MLP(dropout=0.3)
    compiled = gqc.compile(model, seed=seed, min_size=0)
    optimizer = torch.optim.Adam(compiled.parameters())
    x = torch.randn(400, 32)
    compiled(x).sum().backward()
    optimizer.step()
    with nothing_lost(compiled, optimizer):
        gqc.error_report(compiled, x)
    twin = copy.deepcopy(compiled)
    generator = torch.get_rng_state()
    expected = compiled(x)
    gqc.state_of(twin).seed.step = gqc.state_of(compiled).seed.step - (seed is not None)
    torch.set_rng_state(generator)
    gqc.error_report(twin, x)
    torch.testing.assert_close(twin(x), expected, rtol=0, atol=0)


class Remembers(MLP):
    """Replaces a buffer, keeps a tensor, fills a column of the graph, and returns less than it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(64))
        self.hidden = None

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = self.first(x)
        self.average = 0.9 * self.average + h.detach().mean(0)
        self.hidden = h.detach()
        graph.ndata["h"] = self.last(h)
        graph.ndata["feat"] = h
        return self.last(h - self.average)


def test_what_forward_writes_is_put_back():
    dgl = pytest.importorskip("dgl")
    model, graph, x = Remembers(), dgl.rand_graph(400, 900), torch.randn(400, 32)
    graph.ndata["feat"] = x
    average, value, feat = model.average, model.average.clone(), graph.ndata["feat"]
    report = gqc.error_report(gqc.compile(model, min_size=0), graph, x)
    assert report.of("gradient")
    assert model.average is average
    assert torch.equal(average, value)
    assert model.hidden is None
    assert list(graph.ndata) == ["feat"]
    assert graph.ndata["feat"] is feat


@pytest.mark.parametrize(
    ("loss_fn", "returned"),
    [
        (lambda out: out, r"a tensor of shape \[400, 8\]:"),
        (lambda out: out.detach().sum(), r"a tensor of shape \[\], which has no gradient"),
        (lambda out: out.sum().item(), "a float"),
        (lambda out: None, "a NoneType"),
    ],
)
def test_a_loss_without_gradient_is_refused(loss_fn, returned):
    with pytest.raises(gqc.GqcError, match=f"loss_fn returned {returned}.* return one number"):
        gqc.error_report(gqc.compile(MLP(), min_size=0), torch.randn(400, 32), loss_fn=loss_fn)


def test_the_name_of_a_loss_is_refused():
    with pytest.raises(TypeError, match=r"gqc\.error_report: loss_fn='mse' must be a function of the model's result"):
        gqc.error_report(gqc.compile(MLP()), torch.randn(4, 32), loss_fn="mse")


class FillsCache(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.cached = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = (x * 2,)
        return self.last(self.first(x) + self.cached[0].mean())


def test_a_cache_that_the_first_call_fills():
    compiled, x = gqc.compile(FillsCache(), min_size=0), torch.randn(400, 32)
    with pytest.raises(gqc.CaptureError, match="if that fills a cache, call the model once before"):
        gqc.error_report(compiled, x)
    compiled(x)
    assert gqc.error_report(compiled, x).nodes


def test_loss_function_starts_the_backward():
    compiled = gqc.compile(MLP(), min_size=0)
    report = gqc.error_report(compiled, torch.randn(400, 32), loss_fn=lambda out: (out * 0).sum())
    assert all(n.relative == 0 for n in report.of("gradient"))


def test_parts_around_an_island_are_compared():
    report = gqc.error_report(gqc.compile(Positive(), min_size=0), torch.randn(400, 32))
    assert {n.module for n in report.of("gemm")} == {"first", "last"}
    assert all(0 <= n.relative < 0.2 for n in report.nodes)


def test_nan_is_worst():
    x = torch.randn(400, 32)
    x[3, 3] = math.nan
    report = gqc.error_report(gqc.compile(MLP().eval(), min_size=0), x)
    assert math.isnan(report.nodes[0].relative)


def test_a_call_that_forward_does_not_take():
    x, compiled = torch.randn(4, 32), gqc.compile(MLP(), min_size=0)
    for args, kwargs, message in (
        ((), {}, r"MLP\.forward\(x: .*: missing a required argument: 'x'$"),
        (((x, x),), {"y": 1}, "unexpected keyword argument 'y'; the arguments are given one by one, not as a tuple"),
        ((x,), {"loss": torch.sum}, "unexpected keyword argument 'loss'; did you mean 'loss_fn'"),
    ):
        with pytest.raises(TypeError, match=message) as error:
            gqc.error_report(compiled, *args, **kwargs)
        assert error.value.__suppress_context__


class Undecided(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * float(torch.as_tensor(x).sum().item() > 0) if isinstance(x, str) else [x, object()]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(TypeError, match=r"pass the result of gqc\.compile"):
        gqc.error_report(MLP(), torch.randn(4, 32))
    compiled = gqc.compile(Undecided(), min_size=0)
    with pytest.warns(gqc.FallbackWarning):
        compiled(torch.randn(4))
    with pytest.raises(gqc.CaptureError, match="cannot capture"):
        gqc.error_report(compiled, torch.randn(4))
