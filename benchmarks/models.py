"""The models of the step benchmark, once with DGL's layers and once with PyG's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import dgl
import dgl.nn as dglnn
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.datasets import NodeData

HEADS = 4
RELATIONS = 10
RELATION = "relation"
"""Column of ``edata`` with the relation of each edge, for RGCN."""

MakeConv = Callable[[int, int, bool], nn.Module]
"""``(inputs, outputs, is_last)``"""


class Typed(nn.Module):
    """A relational layer of DGL that finds the edges' relations in the graph."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = dglnn.RelGraphConv(inputs, outputs, RELATIONS)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x, graph.edata[RELATION])


class DglNet(nn.Module):
    """Convolutions with an activation and dropout between; the heads of attention are laid side by side."""

    def __init__(self, convs: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.dropout(F.relu(conv(graph, x).flatten(1)))
        return self.convs[-1](graph, x).flatten(1)


class PygNet(nn.Module):
    """The same for PyG; ``edges`` are the arguments of a convolution behind the features."""

    def __init__(self, convs: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, edges: tuple[Tensor, ...], x: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = self.dropout(F.relu(conv(x, *edges)))
        return self.convs[-1](x, *edges)


@dataclass(frozen=True)
class Architecture:
    """A kind of layer in both libraries.

    Attributes:
        dgl, pyg: make a layer.
        self_loops: whether the graph gets self-loops before; PyG's layers then add none.
        typed: whether edges have relations.
    """

    dgl: MakeConv
    pyg: MakeConv
    self_loops: bool = False
    typed: bool = False


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def _dgl_gat(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    heads = 1 if is_last else HEADS
    return dglnn.GATConv(inputs, outputs // heads, heads, attn_drop=0.2)


def _dgl_gatv2(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    heads = 1 if is_last else HEADS
    return dglnn.GATv2Conv(inputs, outputs // heads, heads, attn_drop=0.2)


def _dgl_dotgat(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    heads = 1 if is_last else HEADS
    return dglnn.DotGatConv(inputs, outputs // heads, heads)


def _pyg(name: str) -> Callable[..., nn.Module]:
    def make(*args: object, **kwargs: object) -> nn.Module:
        import torch_geometric.nn as pyg  # optional

        return getattr(pyg, name)(*args, **kwargs)

    return make


def _pyg_gat(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    heads = 1 if is_last else HEADS
    return _pyg("GATConv")(inputs, outputs // heads, heads, dropout=0.2, add_self_loops=False)


def _pyg_gatv2(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    heads = 1 if is_last else HEADS
    return _pyg("GATv2Conv")(inputs, outputs // heads, heads, dropout=0.2, add_self_loops=False)


def _pyg_transformer(inputs: int, outputs: int, is_last: bool) -> nn.Module:
    """Dot-product attention as well, but keys, queries and values have matrices of their own."""
    heads = 1 if is_last else HEADS
    return _pyg("TransformerConv")(inputs, outputs // heads, heads, root_weight=False)


ARCHITECTURES = {
    "gcn": Architecture(
        lambda i, o, _: dglnn.GraphConv(i, o),
        lambda i, o, _: _pyg("GCNConv")(i, o, cached=True, add_self_loops=False),
        self_loops=True,
    ),
    "gat": Architecture(_dgl_gat, _pyg_gat, self_loops=True),
    "gatv2": Architecture(_dgl_gatv2, _pyg_gatv2, self_loops=True),
    "dotgat": Architecture(_dgl_dotgat, _pyg_transformer, self_loops=True),
    "sage": Architecture(lambda i, o, _: dglnn.SAGEConv(i, o, "mean"), lambda i, o, _: _pyg("SAGEConv")(i, o)),
    "gin": Architecture(lambda i, o, _: dglnn.GINConv(_mlp(i, o), "sum"), lambda i, o, _: _pyg("GINConv")(_mlp(i, o))),
    "rgcn": Architecture(
        lambda i, o, _: Typed(i, o), lambda i, o, _: _pyg("RGCNConv")(i, o, RELATIONS, aggr="sum"), typed=True
    ),
}


def prepared(name: str, data: NodeData) -> NodeData:
    """The data with what an architecture needs: self-loops, relations."""
    how = ARCHITECTURES[name]
    data = data.with_self_loops() if how.self_loops else data
    if how.typed:
        generator = torch.Generator().manual_seed(0)
        data.graph.edata[RELATION] = torch.randint(RELATIONS, (data.graph.num_edges(),), generator=generator)
    return data


def _layers(make: MakeConv, data: NodeData, hidden: int, layers: int) -> list[nn.Module]:
    widths = [data.features.shape[1], *[hidden] * (layers - 1), data.classes]
    return [make(i, o, n == layers) for n, (i, o) in enumerate(itertools.pairwise(widths), 1)]


def dgl_net(name: str, data: NodeData, hidden: int, layers: int, dropout: float) -> DglNet:
    """A network of DGL's layers, called with the graph and features."""
    return DglNet(_layers(ARCHITECTURES[name].dgl, data, hidden, layers), dropout)


def pyg_net(name: str, data: NodeData, hidden: int, layers: int, dropout: float) -> PygNet:
    """A network of PyG's layers, called with :func:`pyg_edges` and features."""
    return PygNet(_layers(ARCHITECTURES[name].pyg, data, hidden, layers), dropout)


def pyg_edges(name: str, data: NodeData) -> tuple[Tensor, ...]:
    """``edge_index`` and, for a typed architecture, the relations, sorted by source as PyG's ``coalesce`` leaves it."""
    source, target, edges = data.graph.edges(form="all")
    order = source.argsort(stable=True)
    index = torch.stack([source, target])[:, order].long()
    return (index, data.graph.edata[RELATION][edges.long()][order]) if ARCHITECTURES[name].typed else (index,)
