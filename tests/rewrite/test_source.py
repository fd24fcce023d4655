"""What a rewritten module is: standalone, readable, the same each time, and strict about its calls."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dgl
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from tests.rewrite.conftest import Load
from tests.rewrite.zoo import CASES, GAT, GCN, SAGE, PyG, edge_index, graph_and_features
from tests.ruff import ruff_complaints

ROOT = Path(__file__).resolve().parents[2]

# Trains one step in a process in which the compiler cannot be imported.
STANDALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["gqc", p] for p in ("capture", "passes", "compile", "joint", "rewrite", "variant")):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Refuse())
import torch, gqc.runtime, rewritten
model = rewritten.%s()
model.load_state_dict(torch.load("state.pt"))
call = torch.load("call.pt", weights_only=False)
torch.manual_seed(5)
loss = model(*call).square().sum()
loss.backward()
assert all(p.grad is not None for p in model.parameters())
assert not any(m.startswith(("gqc.capture", "gqc.passes")) for m in sys.modules), "the compiler came along"
print("loss", loss.item().hex())
"""


@pytest.mark.parametrize("name", ["gat", "pyg"])
def test_trains_in_a_process_without_the_compiler(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, call = case.make(), case.call(1)
    (tmp_path / "rewritten.py").write_text(gqc.rewrite(model, call, min_size=0))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    torch.save(call, tmp_path / "call.pt")
    script = STANDALONE % type(model).__name__
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(5)
    loss = gqc.compile(model, min_size=0)(*call).square().sum()
    assert done.stdout.split() == ["loss", loss.item().hex()]


def test_same_source_each_time_and_the_model_is_left_alone() -> None:
    model, call = GCN(), graph_and_features(1)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    first = gqc.rewrite(model, call, source="models.py:make_model")
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert gqc.rewrite(model, call, source="models.py:make_model") == first


def test_header_tells_where_it_comes_from() -> None:
    source = gqc.rewrite(SAGE(), graph_and_features(1), bits=32, source="models.py:make_model")
    head = source[: source.index("import")]
    for text in ("models.py:make_model", f"torch       {torch.__version__}", "python ", "gqc ", "bits=32"):
        assert text in head
    assert "written for model.train(), with gradients; model.eval(), under torch.no_grad()" in head


def test_names_and_comments_come_from_the_users_program() -> None:
    source = gqc.rewrite(GAT(), graph_and_features(1), min_size=0)
    for name in ("conv1_fc_out_int8", "conv1_attended", "conv1_fc_weight_grad"):
        assert f"{name} = " in source or f"{name}, " in source, name
    assert "# conv1.fc (Linear), gatconv.py:" in source
    assert "h = F.elu(self.conv1(graph, x).flatten(1))" in source
    assert "_unsafe_view" not in source


def test_reads_the_policy_of_a_compiled_model() -> None:
    compiled = gqc.compile(SAGE(), min_size=0, rounding="nearest")
    source = gqc.rewrite(compiled, graph_and_features(1))
    assert "rounding='nearest'" in source
    assert "stochastic=True" not in source


@pytest.fixture
def sage(load: Load) -> nn.Module:
    model = SAGE()
    rewritten = load(gqc.rewrite(model, graph_and_features(1))).SAGE()
    rewritten.load_state_dict(model.state_dict())
    return rewritten


def test_refuses_calls_of_another_kind(sage: nn.Module) -> None:
    graph, x = graph_and_features(1)
    block = dgl.to_block(graph)
    with_weights = graph.clone()
    with_weights.edata["w"] = torch.ones(graph.num_edges())
    other = dgl.heterograph({("a", "to", "b"): ([0, 1], [0, 1])})
    for call, message in (
        ((graph, x[:, :5]), r"x has shape \[49, 5\]"),
        ((graph, x.double()), "x is of torch.float64"),
        ((graph, x[:10]), "calls where x.shape"),
        ((graph, x.clone().requires_grad_()), "x requires a gradient"),
        ((graph, x.tolist()), "x is a list"),
        ((x, x), "graph is a Tensor"),
        ((block, x), "graph has"),
        ((with_weights, x), "graph has edge columns"),
        ((graph.int(), x), "graph has index torch.int32"),
        ((other, x), "graph has node types"),
    ):
        with pytest.raises(gqc.InputError, match=message):
            sage(*call)


def test_refuses_other_modes_and_types(sage: nn.Module) -> None:
    call = graph_and_features(1)
    with pytest.raises(gqc.InputError, match=r"called as model.eval\(\) with gradients"):
        sage.eval()(*call)
    with pytest.raises(gqc.InputError, match="autocast is on"), torch.autocast("cpu", torch.bfloat16):
        sage.train()(*call)
    with pytest.raises(gqc.InputError, match=r"conv1\.\S+ is torch.float64"):
        sage.double()(*call)


def test_a_rewritten_model_needs_no_compiler(sage: nn.Module) -> None:
    with pytest.raises(gqc.GqcError, match=r"SAGE was written down by gqc\.rewrite and runs quantized as it is"):
        gqc.compile(sage)
    with pytest.raises(gqc.RewriteError, match="SAGE has been rewritten already: rewrite the original"):
        gqc.rewrite(sage, graph_and_features(1))


def test_says_when_only_one_way_was_written_down(load: Load) -> None:
    source = gqc.rewrite(SAGE(), graph_and_features(1), modes=["train"])
    assert "not for     model.eval(), under torch.no_grad()" in source
    with pytest.raises(gqc.InputError, match=r"rewritten for model.train\(\) with gradients only"), torch.no_grad():
        load(source).SAGE().eval()(*graph_and_features(1))


def test_decision_on_a_value_is_checked(load: Load) -> None:
    model, (graph, x) = GAT(), graph_and_features(1)
    rewritten = load(gqc.rewrite(model, (graph, x))).GAT()
    rewritten.load_state_dict(model.state_dict())
    lonely = dgl.graph(([0, 1], [1, 0]), num_nodes=x.shape[0])
    with pytest.raises(gqc.InputError, match="in_degrees"):
        rewritten(lonely, x)


def test_parameters_are_nan_until_they_are_loaded(load: Load) -> None:
    rewritten = load(gqc.rewrite(SAGE(), graph_and_features(1))).SAGE()
    assert all(p.isnan().all() for p in rewritten.parameters())
    missing = SAGE().state_dict()
    del missing["conv1.fc_neigh.weight"]
    with pytest.raises(RuntimeError, match=r"conv1.fc_neigh.weight"):
        rewritten.load_state_dict(missing)


class WithIsland(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.lstm(x[:, None])[0][:, 0]))


class ReturnsObject(nn.Module):
    def forward(self, x: Tensor) -> object:
        return torch.max(x * 2, 0)


class WritesArgument(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2) + 1


class LargeConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(100, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table.T


def test_says_what_cannot_be_written_down() -> None:
    x = torch.randn(50, 16)
    for model, message in (
        (WithIsland(), "module 'lstm' runs eagerly"),
        (ReturnsObject(), "forward returns a max"),
        (WritesArgument(), "changes an argument in place"),
        (LargeConstant(), "buffer 'table'"),
    ):
        with pytest.raises(gqc.RewriteError, match=message):
            gqc.rewrite(model, (x,))
    with pytest.raises(ValueError, match="expected some of 'train'"):
        gqc.rewrite(LargeConstant(), (x,), modes=["test"])


class Caches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.cache = x * 2
        return self.cache


class Pair(NamedTuple):
    first: Any
    second: Any


class Returns(nn.Module):
    """Gives what a function makes of two results."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.lin, self.make = nn.Linear(16, 8), make

    def forward(self, x: Tensor, *, size: Any = (50, 8), factor: float = 1.0) -> Any:
        h = self.lin(x)
        return self.make(h.view(size) * factor, h)


def test_sizes_nan_and_ordered_results(load: Load, tmp_path: Path) -> None:
    model, x = Returns(lambda a, b: OrderedDict(first=a, second=b)), torch.randn(50, 16)
    given = {"size": torch.Size([25, 16]), "factor": math.nan}
    source = gqc.rewrite(model, (x,), given, modes=["train"])
    assert ruff_complaints(source, tmp_path) == ""
    rewritten = load(source).Returns()
    rewritten.load_state_dict(model.state_dict())
    found, expected = rewritten(x, **given), gqc.compile(model)(x, **given)
    assert type(found) is OrderedDict
    assert list(found) == ["first", "second"]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    for other in ({"size": (25, 16)}, {"size": torch.Size([50, 8])}, {"factor": 1.0}):
        with pytest.raises(gqc.InputError, match="was rewritten for"):
            rewritten(x, **given | other)


class G(nn.Module):
    """Named as the constant that describes its argument would be."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGE().conv1

    def forward(self, g: Any, x: Tensor) -> Tensor:
        return self.conv(g, x)


def test_a_class_that_is_called_as_its_graph_is(load: Load) -> None:
    graph, x = graph_and_features(1)
    model = G()
    rewritten = load(gqc.rewrite(model, (graph, x), modes=["train"])).G()
    rewritten.load_state_dict(model.state_dict())
    assert rewritten(graph, x).isfinite().all()


def test_results_and_decisions_that_have_no_form() -> None:
    x = torch.randn(50, 16)
    for model, kwargs, message in (
        (Returns(Pair), {}, "forward returns a Pair, which cannot be written down; return a plain tuple"),
        (Returns(lambda a, b: a), {"factor": np.float32(2)}, "a number of type float32 .* pass one of Python"),
        (
            nn.BatchNorm1d(16, momentum=None),
            {},
            "on buffer 'num_batches_tracked', which it changes .* momentum a number",
        ),
    ):
        with pytest.raises(gqc.RewriteError, match=message):
            gqc.rewrite(model, (x,), kwargs, modes=["train"])


def test_says_what_it_needs() -> None:
    x, model = torch.randn(50, 16), LargeConstant()
    for arguments, options, error, message in (
        ((x,), {}, TypeError, r"arguments of a call as a tuple, such as \(graph, x\), not a Tensor"),
        (((x,), [1]), {}, TypeError, "keyword arguments as a dict, not a list"),
        (((x, x),), {}, TypeError, r"LargeConstant\.forward\(x: .*: too many positional arguments"),
        (((x,), {}, "int8"), {}, gqc.PolicyError, "policy='int8': expected a gqc.Policy"),
        (((x,),), {"keep": ["nope"]}, gqc.PolicyError, "has no module of this name"),
        (((x,),), {"bits": {"nope": 4}}, gqc.PolicyError, "has no module of this name"),
    ):
        with pytest.raises(error, match=message):
            gqc.rewrite(model, *arguments, **options)
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, not function"):
        gqc.rewrite(lambda x: x, (x,))
    with pytest.raises(gqc.RewriteError, match=r"weight has no shape before the first call"):
        gqc.rewrite(nn.LazyLinear(5), (x,))
    caches = Caches()
    caches(x.clone().requires_grad_())
    with pytest.raises(gqc.GqcError, match="the model holds a tensor with gradient history in its attribute 'cache'"):
        gqc.rewrite(caches, (x,))
    model.register_full_backward_hook(lambda *_: None)
    with pytest.raises(gqc.RewriteError, match="the model has backward hooks"):
        gqc.rewrite(model, (x,))


def test_a_norm_in_evaluation_stays_so_in_training(load: Load) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)), torch.randn(50, 16)
    model[1].eval()
    rewritten = load(gqc.rewrite(model, (x,), modes=["train"], bits=32)).Sequential()
    rewritten.load_state_dict(model.state_dict())
    assert torch.equal(rewritten(x), gqc.compile(model, bits=32)(x))
    assert model.training
    assert not model[1].training
    assert rewritten.state_dict()["1.num_batches_tracked"] == 0


class Mixed(nn.Module):
    """Sizes that depend on data, a list of operands, and names that are no identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a-b": nn.Linear(16, 8), "c": nn.Sequential(nn.ReLU(), nn.Linear(16, 8))})
        self.weights = nn.ParameterList([torch.randn(8, 8), torch.randn(8, 4)])

    def forward(self, x: Tensor, index: Tensor, pair: tuple[Tensor, int]) -> tuple[Tensor, list[Tensor]]:
        rows = torch.unique(index)
        y = torch.cat([self.layers["a-b"](x), self.layers["c"](x)])[: 2 * pair[1]]
        return (y @ self.weights[0] @ self.weights[1])[: rows.shape[0]], [torch.log_softmax(y, 1), pair[0]]


def test_data_dependent_sizes_and_awkward_names(load: Load, tmp_path: Path) -> None:
    model = Mixed()
    calls = [(torch.randn(n, 16), torch.arange(3 * n) % n, (torch.arange(n), 10)) for n in (30, 44)]
    source = gqc.rewrite(model, calls[0], min_size=0)
    assert ruff_complaints(source, tmp_path) == ""
    rewritten = load(source).Mixed()
    rewritten.load_state_dict(model.state_dict(), strict=True)
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    for call in calls:
        results = []
        for each in (rewritten, compiled):
            torch.manual_seed(1)
            out = each(*call)
            each.zero_grad()
            (out[0].sum() + out[1][0].square().sum()).backward()
            results.append([out[0], *out[1], *(p.grad for p in each.parameters())])
        assert all(map(torch.equal, *results))


def test_pyg_argument_of_another_width(load: Load) -> None:
    model, (x, edges) = PyG(), edge_index(1)
    rewritten = load(gqc.rewrite(model, (x, edges))).PyG()
    rewritten.load_state_dict(model.state_dict())
    with pytest.raises(gqc.InputError, match="edge_index has shape"):
        rewritten(x, edges[:1])
    with pytest.raises(gqc.InputError, match=r"edge_index is of torch.int32"):
        rewritten(x, edges.int())
