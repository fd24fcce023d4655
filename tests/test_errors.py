"""Bad input: eager's own errors, a warning where gqc cannot capture, and nothing lost on the way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import dgl
import pytest
import torch
from dgl.nn import GATConv, GraphConv
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.report import KEPT
from gqc.runtime import native
from tests.same import assert_same, assert_same_error, nothing_lost, one_warning, pair, step


class GCN(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = GraphConv(8, 16, **options), nn.BatchNorm1d(16), GraphConv(16, 4, **options)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(graph, self.norm(self.conv1(graph, x)).relu())


class GAT(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv1, self.conv2 = GATConv(8, 4, 2, **options), GATConv(8, 4, 1, **options)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(graph, self.conv1(graph, x).flatten(1)).mean(1)


class Function(nn.Module):
    """A layer, dropout, and a function of their output and of the module."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Any], dropout: float = 0.3) -> None:
        super().__init__()
        self.linear, self.other, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(dropout)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.dropout(self.linear(x)))


def a_graph(nodes: int = 40) -> dgl.DGLGraph:
    return dgl.add_self_loop(dgl.rand_graph(nodes, 4 * nodes))


def rows(n: int = 40) -> Tensor:
    return torch.randn(n, 8)


def without_in_edges() -> dgl.DGLGraph:
    return dgl.graph(([0, 1], [1, 2]), num_nodes=40)


BAD: dict[str, tuple[Callable[[dgl.DGLGraph], tuple[Any, ...]], str]] = {
    "sparse features": (lambda g: (g, rows().to_sparse()), ""),
    "integer features": (lambda g: (g, torch.ones(40, 8, dtype=torch.long)), "dtype"),
    "complex features": (lambda g: (g, rows().to(torch.complex64)), ""),
    "another device": (lambda g: (g, rows().to("meta")), "device"),
    "too many rows": (lambda g: (g, rows(41)), "41"),
    "no rows": (lambda g: (g, rows(0)), "0"),
    "one row": (lambda g: (g, torch.randn(8)), ""),
    "too few columns": (lambda g: (g, torch.randn(40, 7)), "40x7"),
    "nodes without in-edges": (lambda g: (without_in_edges(), rows()), "There are 0-in-degree nodes in the graph"),
    "no features": (lambda g: (g,), "missing 1 required positional argument: 'x'"),
    "arguments swapped": (lambda g: (rows(), g), "local_scope"),
    "another graph's rows": (lambda g: (a_graph(50), rows()), "50"),
}


TAKEN = {(GCN, "integer features"), (GAT, "sparse features")}
"""What these models take in eager: GraphConv divides before it multiplies, GATConv is a sparse product."""


@pytest.fixture(scope="module")
def models() -> dict[type[nn.Module], tuple[nn.Module, nn.Module]]:
    """Eager models and their compiled twins, which all bad calls share.

    In eval mode, because eager updates running statistics before it fails.
    """
    return {model: pair(model().eval()) for model in (GCN, GAT)}


@pytest.mark.parametrize(("model", "case"), [(m, case) for m in (GCN, GAT) for case in BAD if (m, case) not in TAKEN])
def test_the_user_sees_the_error_of_eager(models: Any, model: type[nn.Module], case: str) -> None:
    eager, compiled = models[model]
    graph = a_graph()
    graph.ndata["kept"] = torch.arange(40)
    make, text = BAD[case]
    args = make(graph)
    optimizer = torch.optim.Adam(compiled.parameters())
    with nothing_lost(compiled, optimizer, graph):
        error = assert_same_error(eager, compiled, *args)
    assert text in str(error)
    assert not isinstance(error, gqc.GqcError)
    assert_same(eager, compiled, graph, rows())
    assert_same_error(eager, compiled, *args)
    assert gqc.state_of(compiled).num_variants == 1
    assert gqc.state_of(compiled).fallbacks == {}


@pytest.mark.parametrize("model", [GCN, GAT])
def test_a_bad_first_call_does_not_stop_training(model: type[nn.Module]) -> None:
    eager, compiled = pair(model())
    optimizers = [torch.optim.SGD(m.parameters(), 1e-3, momentum=0.9) for m in (eager, compiled)]
    graph, x, bad = a_graph(), rows(), without_in_edges()
    with nothing_lost(compiled, optimizers[1]), pytest.raises(dgl.DGLError, match="0-in-degree"):
        compiled(bad, x)
    for _ in range(2):
        assert_same(eager, compiled, graph, x)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)


def test_odd_features_that_eager_takes() -> None:
    graph = a_graph()
    eager, compiled = pair(GCN())
    assert_same(eager, compiled, graph, torch.randint(5, (40, 8)))
    eager, compiled = pair(GAT())
    with one_warning("sparse"):
        assert_same(eager, compiled, graph, rows().to_sparse())


def test_nodes_without_in_edges_can_be_allowed() -> None:
    eager, compiled = pair(GCN(allow_zero_in_degree=True))
    assert_same(eager, compiled, without_in_edges(), rows())
    assert_same(eager, compiled, a_graph(), rows())
    assert gqc.state_of(compiled).num_variants == 1


def test_sparse_input_that_eager_takes_runs_eagerly() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
            return torch.sparse.mm(x, self.weight) if x.is_sparse else x @ self.weight

    eager, compiled = pair(Sparse())
    graph, x = a_graph(), rows().to_sparse()
    with one_warning(r"argument 1: a torch\.sparse_coo tensor .* pass features dense") as seen:
        assert_same(eager, compiled, graph, x)
        assert_same(eager, compiled, graph, x)
    assert seen[0].filename.endswith("same.py")
    (fallback,) = gqc.explain(compiled).fallbacks
    assert "argument 1" in fallback.reason
    assert_same(eager, compiled, graph, rows())
    assert gqc.state_of(compiled).num_variants == 1


@pytest.mark.parametrize("model", [GCN, GAT])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_parameters_of_other_precision_train(model: type[nn.Module], dtype: torch.dtype) -> None:
    exact = model()
    eager, compiled = pair(exact, bits=8, min_size=0)
    compiled.to(dtype)
    graph, x = a_graph(400), rows(400)  # rounding errors average out
    if dtype is torch.float64:
        assert_same(eager.double(), compiled, graph, x.double())
    else:  # DGL has no float16 on the CPU, and its bfloat16 rounds elsewhere
        (expected, want), (actual, got) = step(eager, graph, x), step(compiled, graph, x.to(dtype))
        assert actual.dtype == dtype
        assert (actual - expected).norm() < 0.1 * expected.norm()
        for name, gradient in want.items():
            assert got[name].dtype == dtype
            assert (got[name] - gradient).norm() < 0.15 * gradient.norm() + 0.1 * max(g.norm() for g in want.values())
    if dtype is torch.float64:
        (variant,) = gqc.explain(compiled).variants
        kept = [decision for stage in variant.stages for decision in stage.decisions(KEPT)]
        assert any(str(dtype).removeprefix("torch.") in decision.reason for decision in kept)


def numpy_mean(module: nn.Module, h: Tensor) -> Tensor:
    return h * float(h.detach().numpy().mean())


def sparse_product(module: nn.Module, h: Tensor) -> Tensor:
    return torch.sparse.mm(torch.eye(len(h)).to_sparse(), h)


def gradient_hook(module: nn.Module, h: Tensor) -> Tensor:
    h.register_hook(lambda grad: grad * 3)
    return module.other(h)


def seeded(module: nn.Module, h: Tensor) -> Tensor:
    torch.manual_seed(3)
    return F.dropout(h, 0.5)


def forked(module: nn.Module, h: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return F.dropout(h, 0.5)


def own_generator(module: nn.Module, h: Tensor) -> Tensor:
    return h * torch.rand(8, generator=torch.Generator().manual_seed(3))


def counts(module: nn.Module, h: Tensor) -> Tensor:
    module.calls = getattr(module, "calls", 0) + 1
    return h * module.calls


def appends(module: nn.Module, h: Tensor) -> Tensor:
    module.__dict__.setdefault("log", []).append(h.shape[0])
    return h * len(module.log)


def changes_a_parameter(module: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        module.other.weight.mul_(0.9)
    return h @ module.other.weight


def double_relu(x: Tensor) -> Tensor:
    return x.relu() * 2


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(double_relu)


def an_object(module: nn.Module, h: Tensor) -> Any:
    return iter((h,))


UNCAPTURABLE: list[tuple[Callable[[nn.Module, Tensor], Any], str]] = [
    (lambda m, h: h * sum(v for row in h.tolist() for v in row), r"tolist|parameter|random"),
    (numpy_mean, "NumPy array"),
    (sparse_product, "sparse tensor is made inside forward"),
    (lambda m, h: h * 2 if h.sum() > 0 else h - 1, "decision depends on random numbers"),
    (lambda m, h: m.other(h) * m.linear.weight.norm().item(), "parameter 'linear.weight', which training changes"),
    (gradient_hook, r"register_hook\(\)"),
    (seeded, "seeds torch's generator"),
    (forked, "seeds torch's generator"),
    (own_generator, "generator of its own"),
    (counts, "changes the attribute 'calls'"),
    (appends, "changes what 'log' holds"),
    (changes_a_parameter, "changes 'other.weight', which requires a gradient, in place"),
    (lambda m, h: scripted(h), "TorchScript"),
]


@pytest.mark.parametrize(("function", "reason"), UNCAPTURABLE)
def test_what_cannot_be_captured_runs_eagerly(function: Callable[..., Any], reason: str) -> None:
    eager, compiled = pair(Function(function))
    with one_warning(reason) as seen:
        for n in (5, 7, 5, 5):
            assert_same(eager, compiled, rows(n))
    (fallback,) = gqc.explain(compiled).fallbacks
    assert re.search(reason, fallback.reason)
    assert "gqc.explain(model)" in str(seen[0].message)


def test_a_reason_names_the_line() -> None:
    compiled = gqc.compile(Function(numpy_mean))
    with one_warning(r"cannot capture the model at test_errors\.py:\d+: "):
        compiled(rows())


def test_a_result_that_is_no_tensor() -> None:
    compiled = gqc.compile(Function(an_object))
    with one_warning("object of type tuple_iterator"):
        (h,) = compiled(rows())
    assert h.shape == (40, 8)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, h: h * 2 if h.sum() > 0 else h - 1,
        lambda m, h: torch.stack([row * (i + 1) for i, row in enumerate(h[:3])]) if len(h) > 3 else h,
    ],
)
def test_a_branch_that_can_be_checked_is_captured(function: Callable[..., Any]) -> None:
    eager, compiled = pair(Function(function, dropout=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", gqc.FallbackWarning)
        for shift in (3.0, -3.0, 3.0, -3.0):
            assert_same(eager, compiled, rows() + shift)


def test_the_model_s_own_checks_still_raise() -> None:
    def check(module: nn.Module, h: Tensor) -> Tensor:
        if not torch.isfinite(h).all():
            raise ValueError("h is not finite")
        assert h.shape[0] > 3, "too few rows"
        return h

    eager, compiled = pair(Function(check, dropout=0.0))
    assert_same(eager, compiled, rows())
    assert_same_error(eager, compiled, rows(2))
    assert_same_error(eager, compiled, torch.full((5, 8), torch.inf))
    assert_same(eager, compiled, rows(5))
    assert gqc.state_of(compiled).num_variants == 1


def test_kinds_of_calls_without_end_are_compiled_a_few_times() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, factor: float) -> Tensor:
            return self.linear(x) * factor

    eager, compiled = pair(Scale())
    with one_warning("compiled 16 times already"):
        for i in range(20):
            assert_same(eager, compiled, rows(), i / 7)
    state = gqc.state_of(compiled)
    assert (state.num_variants, len(state.fallbacks)) == (16, 1)


def test_compiled_code_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    eager, compiled = pair(Function(lambda m, h: h.relu()))
    assert_same(eager, compiled, rows())

    def fail(*_: Any) -> Any:
        raise gqc.KernelError("no such kernel")

    ((variant,),) = gqc.state_of(compiled).variants.values()
    monkeypatch.setattr(type(variant), "run", fail)
    with one_warning("its compiled form failed with KernelError: no such kernel"):
        assert_same(eager, compiled, rows())
    monkeypatch.undo()
    assert_same(eager, compiled, rows())
    assert gqc.state_of(compiled).num_variants == 0


@pytest.mark.parametrize("calls", [0, 1])
def test_a_library_that_fails_is_not_hidden(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a model is compiled nor where it runs: eager would be slow, and its warning soon forgotten."""
    eager, compiled = pair(Function(lambda m, h: h.relu()))
    for _ in range(calls):
        assert_same(eager, compiled, rows())

    def fail(*_: Any) -> Any:
        raise gqc.LibraryError("gqc's native library cannot be loaded")

    monkeypatch.setattr(native, "_bind", fail)
    monkeypatch.setattr(native, "isa", fail)
    monkeypatch.setattr(native, "_functions", {})
    with pytest.raises(gqc.LibraryError, match="cannot be loaded"):
        compiled(rows())
    monkeypatch.undo()
    assert_same(eager, compiled, rows())
    assert not gqc.state_of(compiled).fallbacks


# ---- numbers that are not finite


@pytest.mark.parametrize("model", [GCN, GAT])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_int8_hides_no_nan_or_infinity(model: type[nn.Module], bad: float) -> None:
    eager, compiled = pair(model(), bits=8, min_size=0)
    eager.eval(), compiled.eval()
    graph, x = a_graph(300), rows(300)
    x[3, 2] = bad
    (expected, want), (actual, got) = step(eager, graph, x), step(compiled, graph, x)
    assert not actual[~expected.isfinite()].isfinite().any()
    assert not all(gradient.isfinite().all() for gradient in want.values())
    for name, gradient in want.items():
        assert not got[name][~gradient.isfinite()].isfinite().any(), name
    out, gradients = step(compiled, graph, rows(300))
    assert out.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_grad_scaler_skips_a_step_with_an_infinity() -> None:
    model = GAT()
    compiled = gqc.compile(model, min_size=0)
    optimizer = torch.optim.Adam(compiled.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    graph = a_graph()

    def train(x: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        scaler.scale(compiled(graph, x).sin().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    before = train(rows())
    bad = rows()
    bad[0, 0] = torch.inf
    torch.testing.assert_close(train(bad), before, rtol=0, atol=0)
    assert scaler.get_scale() == 2.0
    after = train(rows())
    assert all(p.isfinite().all() for p in after.values())
    assert not torch.equal(after["conv1.fc.weight"], before["conv1.fc.weight"])
