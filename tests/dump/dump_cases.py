"""Models whose dumps the tests read, and dumps of other models in every form that a graph takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dgl
import dgl.nn as conv
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc

FEATURES, HIDDEN, CLASSES, RELATIONS = 32, 16, 5, 3


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv.GraphConv(FEATURES, HIDDEN)
        self.conv2 = conv.GraphConv(HIDDEN, CLASSES)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        return self.conv2(graph, F.relu(self.conv1(graph, x)))


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv.GATConv(FEATURES, HIDDEN // 4, 4)
        self.conv2 = conv.GATConv(HIDDEN, CLASSES, 1)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        h = F.dropout(F.elu(self.conv1(graph, x).flatten(1)), 0.5, self.training)
        return self.conv2(graph, h).mean(1)


class RGCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv.RelGraphConv(FEATURES, HIDDEN, RELATIONS)
        self.conv2 = conv.RelGraphConv(HIDDEN, CLASSES, RELATIONS)

    def forward(self, graph: Any, x: Tensor, types: Tensor) -> Tensor:
        return self.conv2(graph, F.relu(self.conv1(graph, x, types)), types)


class Hetero(nn.Module):
    """Two node types, a relation each way."""

    def __init__(self) -> None:
        super().__init__()
        writes = conv.GraphConv(FEATURES, CLASSES, allow_zero_in_degree=True)
        written = conv.SAGEConv((8, FEATURES), CLASSES, "mean")
        self.conv = conv.HeteroGraphConv({"writes": writes, "written": written})

    def forward(self, graph: Any, authors: Tensor, papers: Tensor) -> dict[str, Tensor]:
        return self.conv(graph, {"author": authors, "paper": papers})


class Embedded(nn.Module):
    """Index inputs of several kinds, buffers, and the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.fc(F.relu(self.norm(self.table(ids))))[rows], labels)


class WithIsland(nn.Module):
    """An LSTM over mailboxes runs eagerly, so there are two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, HIDDEN)
        self.sage = conv.SAGEConv(HIDDEN, CLASSES, "lstm")

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        return F.relu(self.sage(graph, F.relu(self.fc(x))))


def graph_and_features(nodes: int = 60, edges: int = 240) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    return dgl.add_self_loop(dgl.graph((ends[0], ends[1]), num_nodes=nodes)), torch.randn(nodes, FEATURES)


def _on_graph(model: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[Any, ...]]:
    return model(), graph_and_features()


def _rgcn() -> tuple[nn.Module, tuple[Any, ...]]:
    graph, x = graph_and_features()
    return RGCN(), (graph, x, torch.arange(graph.num_edges()) % RELATIONS)


def _block() -> tuple[nn.Module, tuple[Any, ...]]:
    graph, x = graph_and_features()
    block = dgl.to_block(dgl.in_subgraph(graph, torch.arange(20)), torch.arange(20))
    return conv.SAGEConv(FEATURES, CLASSES, "pool"), (block, x[block.srcdata[dgl.NID]])


def _hetero() -> tuple[nn.Module, tuple[Any, ...]]:
    ends = torch.randint(30, (90,)), torch.randint(50, (90,))
    edges = {("author", "writes", "paper"): ends, ("paper", "written", "author"): ends[::-1]}
    graph = dgl.heterograph(edges, num_nodes_dict={"author": 30, "paper": 50})
    return Hetero(), (graph, torch.randn(30, FEATURES), torch.randn(50, 8))


def _embedded() -> tuple[nn.Module, tuple[Any, ...]]:
    return Embedded(), (torch.randint(7, (40,)), torch.randint(40, (12,)), torch.randint(CLASSES, (12,)))


def _pyg() -> tuple[nn.Module, tuple[Any, ...]]:
    """Self-loops are added, so numbers of edges depend on data."""
    pyg = pytest.importorskip("torch_geometric.nn")
    return pyg.GAT(FEATURES, HIDDEN, 2, CLASSES), (torch.randn(30, FEATURES), torch.randint(30, (2, 90)))


def _pyg_max() -> tuple[nn.Module, tuple[Any, ...]]:
    """Its gathers and scatters stay what they are."""
    pyg = pytest.importorskip("torch_geometric.nn")
    model = pyg.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES, aggr="max", project=True)
    return model, (torch.randn(30, FEATURES), torch.randint(30, (2, 90)))


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "gcn": lambda: _on_graph(GCN),
    "gat": lambda: _on_graph(GAT),
    "rgcn": _rgcn,
    "block": _block,
    "hetero": _hetero,
    "embedded": _embedded,
    "pyg": _pyg,
    "pyg_max": _pyg_max,
    "island": lambda: _on_graph(WithIsland),
}


def dump(name: str, folder: Path, skip: tuple[str, ...] = ()) -> nn.Module:
    """Train one step of a case with its dump in ``folder``; returns the compiled model."""
    torch.manual_seed(0)
    model, args = CASES[name]()
    compiled = gqc.compile(model, min_size=0, skip=skip, dump=folder)
    out = compiled(*args)
    tensors = out.values() if isinstance(out, dict) else [out]
    sum(t.sum() for t in tensors).backward()
    return compiled


def load(path: Path) -> ModuleType:
    """A file of a dump as a module, without running its main part."""
    module = ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module
