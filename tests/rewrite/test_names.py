"""Names of the user's that meet those of the source: arguments, parameters, modules and classes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import dgl
import dgl.nn as dglnn
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from tests.rewrite.conftest import Load
from tests.rewrite.zoo import HIDDEN, WIDTH, graph_and_features
from tests.ruff import ruff_complaints

NODES = 40


def x() -> Tensor:
    return torch.randn(NODES, WIDTH)


class OwnWords(nn.Module):
    """Its parameters and arguments are called as the source calls its own variables."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("out", "saved", "seed", "steps"):
            setattr(self, name, nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5))
        for name in ("sizes", "out_0", "mode"):
            setattr(self, name, nn.Parameter(torch.randn(WIDTH)))
        self.grads, self.results = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, xs, xs_0, seed, mode, structure, decisions, saved, out, ctx) -> tuple[Tensor, Tensor]:
        h = (xs[0] + xs_0 * seed) @ self.out @ self.saved
        scaled = h @ self.seed @ self.steps * self.sizes * self.out_0 * self.mode * saved * out * ctx + mode
        return self.results(self.grads(scaled) + structure + decisions), h


class Graphs(nn.Module):
    """A graph argument whose name is that of its constant, and one that would take the name of an import."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = dglnn.GraphConv(WIDTH, HIDDEN)
        self.last = nn.Linear(HIDDEN, WIDTH)

    def forward(self, G: dgl.DGLGraph, f: dgl.DGLGraph, seed: Tensor) -> Tensor:
        return self.last(F.elu(self.conv(G, seed) + self.conv(f, seed)))


class Keywords(nn.Module):
    """Names that no attribute access can be written with."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("class", nn.Linear(WIDTH, HIDDEN))
        self.block = nn.Module()
        self.block.add_module("for", nn.Linear(HIDDEN, HIDDEN))
        self.register_parameter("import", nn.Parameter(torch.randn(HIDDEN)))
        self.register_parameter("a-b", self._parameters["import"])
        self.register_buffer("is", torch.randn(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        h = getattr(self, "class")(x).relu() * getattr(self, "is") + getattr(self, "import")
        return getattr(self.block, "for")(h) * getattr(self, "a-b")


class Spectral(nn.Module):
    """A list of modules that has parameters and buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).relu()


class Scalar(nn.Module):
    """An argument without dimensions, sizes that are sums, and a dict whose keys are tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, factor: Tensor, features: dict[tuple[str, str], Tensor]) -> Tensor:
        h = self.a(x * factor) + features["user", "knows"]
        return self.b(torch.cat([h[1:], h[:-1], h[::2]]))[-3:]


CALLS = {
    OwnWords: lambda: ([x()], *(x() for _ in range(8))),
    Graphs: lambda: (graph_and_features(0)[0], graph_and_features(0)[0], x()),
    Keywords: lambda: (x(),),
    Scalar: lambda: (x(), torch.tensor(0.5), {("user", "knows"): torch.randn(NODES, HIDDEN)}),
    Spectral: lambda: (x(),),
}


def step(model: nn.Module, call: tuple[Any, ...]) -> list[Tensor | None]:
    torch.manual_seed(1)
    model.zero_grad()
    out = model(*call)
    results = out if isinstance(out, tuple) else (out,)
    sum(r.square().sum() for r in results).backward()
    return [*results, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize(("kind", "seed"), [*((kind, None) for kind in CALLS), (OwnWords, 3)])
def test_awkward_names(kind: type[nn.Module], seed: int | None, load: Load, tmp_path: Path) -> None:
    model, call = kind(), CALLS[kind]()
    source = gqc.rewrite(model, call, min_size=0, seed=seed)
    if kind is not Spectral:  # its names are too long for the layout of ruff format
        assert ruff_complaints(source, tmp_path) == ""
    rewritten = getattr(load(source), kind.__name__)()
    rewritten.load_state_dict(model.state_dict(), strict=True)
    assert list(rewritten.state_dict()) == list(model.state_dict())
    compiled = gqc.compile(copy.deepcopy(model), min_size=0, seed=seed)
    for expected, found in zip(step(compiled, call), step(rewritten, call), strict=True):
        assert (expected is None) == (found is None)
        assert expected is None or torch.equal(expected, found)
    assert not gqc.state_of(compiled).fallbacks


class Hiding(nn.Module):
    def forward(self, relations: Tensor) -> Tensor:
        return relations.relu()


class TrainStep(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


def test_names_that_cannot_be_written_down() -> None:
    with pytest.raises(gqc.RewriteError, match=r"argument relations of forward would hide relations, .*: rename it"):
        gqc.rewrite(Hiding(), (x(),))
    with pytest.raises(gqc.RewriteError, match="class is called 'TrainStep', which cannot be the name"):
        gqc.rewrite(TrainStep(), (x(),))
