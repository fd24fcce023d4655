"""Models as users write them, each with two example calls of different size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dgl
import dgl.nn as dglnn
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

WIDTH, HIDDEN, CLASSES, RELATIONS = 16, 24, 5, 3


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = dglnn.GraphConv(WIDTH, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.conv2 = dglnn.GraphConv(HIDDEN, CLASSES)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv1(graph, x)))
        h = F.dropout(h, 0.5, self.training)
        return self.conv2(graph, h)


class GAT(nn.Module):
    def __init__(self, kind: type[nn.Module] = dglnn.GATConv) -> None:
        super().__init__()
        self.conv1 = kind(WIDTH, HIDDEN // 3, 3, feat_drop=0.2, attn_drop=0.2)
        self.conv2 = kind(HIDDEN, CLASSES, 1)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        h = F.elu(self.conv1(graph, x).flatten(1))
        return self.conv2(graph, h).mean(1)


class GATv2(GAT):
    def __init__(self) -> None:
        super().__init__(dglnn.GATv2Conv)


class SAGE(nn.Module):
    def __init__(self, aggregator: str = "mean") -> None:
        super().__init__()
        self.conv1 = dglnn.SAGEConv(WIDTH, HIDDEN, aggregator)
        self.conv2 = dglnn.SAGEConv(HIDDEN, CLASSES, aggregator)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(graph, F.relu(self.conv1(graph, x)))


class RGCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = dglnn.RelGraphConv(WIDTH, HIDDEN, RELATIONS, "basis", 2)
        self.conv2 = dglnn.RelGraphConv(HIDDEN, CLASSES, RELATIONS, "basis", 2)

    def forward(self, graph: dgl.DGLGraph, x: Tensor, etypes: Tensor) -> Tensor:
        return self.conv2(graph, F.relu(self.conv1(graph, x, etypes)), etypes)


class Blocks(nn.Module):
    """Takes the blocks of a sampler; its layers are in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([dglnn.SAGEConv(WIDTH, HIDDEN, "mean"), dglnn.SAGEConv(HIDDEN, CLASSES, "mean")])

    def forward(self, blocks: list[dgl.DGLGraph], x: Tensor) -> Tensor:
        for layer, block in zip(self.layers, blocks, strict=True):
            x = layer(block, x)
            if layer is not self.layers[-1]:
                x = F.relu(x)
        return x


class PyG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(WIDTH, HIDDEN)
        self.conv2 = pyg.GCNConv(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(F.relu(self.conv1(x, edge_index)), 0.5, self.training)
        return self.conv2(h, edge_index)


class Hetero(nn.Module):
    """Takes a graph of several relations and a dict of features."""

    def __init__(self) -> None:
        super().__init__()
        verbs = ("follows", "plays")
        self.conv = dglnn.HeteroGraphConv({verb: dglnn.GraphConv(WIDTH, HIDDEN) for verb in verbs})
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, graph: dgl.DGLGraph, features: dict[str, Tensor]) -> Tensor:
        h = self.conv(graph, features)
        return torch.cat([self.out(F.relu(h[kind])) for kind in ("user", "game")])


class OnData(nn.Module):
    """Takes PyG's ``Data``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.SAGEConv(WIDTH, HIDDEN)
        self.conv2 = pyg.GINConv(nn.Linear(HIDDEN, CLASSES))

    def forward(self, data: Data) -> Tensor:
        return self.conv2(F.relu(self.conv1(data.x, data.edge_index)), data.edge_index)


class Several(nn.Module):
    """Takes a column and a constant, returns a dict, writes a column and an attribute; has tied and frozen tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.third = nn.Linear(HIDDEN, HIDDEN)
        self.third.weight = self.second.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([0.5, 2.0]), persistent=False)

    def forward(self, graph: dgl.DGLGraph, factor: float = 1.0) -> dict[str, Any]:
        h = F.relu(self.first(graph.ndata["feat"]) * self.scale[0]) * factor
        graph.ndata["hidden"] = h.detach()
        self.last = h.detach()
        return {"out": self.third(self.second(h)), "pair": (h.sum(), graph.in_degrees().float().mean()), "n": 3}


def graph_and_features(seed: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    nodes = 40 + 9 * seed
    edges = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    graph = dgl.add_self_loop(dgl.graph((edges[0], edges[1]), num_nodes=nodes))
    return graph, torch.randn(nodes, WIDTH, generator=generator)


def with_etypes(seed: int) -> tuple[Any, ...]:
    graph, x = graph_and_features(seed)
    return graph, x, torch.arange(graph.num_edges()) % RELATIONS


def blocks_and_features(seed: int) -> tuple[Any, ...]:
    graph, _ = graph_and_features(seed)
    torch.manual_seed(seed)
    _, _, blocks = dgl.dataloading.NeighborSampler([3, 3]).sample_blocks(graph, torch.arange(12 + seed))
    return blocks, torch.randn(blocks[0].num_src_nodes(), WIDTH)


def edge_index(seed: int) -> tuple[Any, ...]:
    graph, x = graph_and_features(seed)
    return x, torch.stack(graph.edges())


def typed_graph(seed: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    users, games, edges = 30 + 7 * seed, 10, 90 + 20 * seed
    ends = {
        ("user", "follows", "user"): (torch.randint(users, (edges,), generator=generator), torch.arange(edges) % users),
        ("user", "plays", "game"): (torch.randint(users, (edges,), generator=generator), torch.arange(edges) % games),
    }
    graph = dgl.heterograph(ends, num_nodes_dict={"user": users, "game": games})
    return graph, {kind: torch.randn(graph.num_nodes(kind), WIDTH, generator=generator) for kind in ("user", "game")}


def data_object(seed: int) -> tuple[Any, ...]:
    x, edges = edge_index(seed)
    return (Data(x=x, edge_index=edges),)


def with_column(seed: int) -> tuple[Any, ...]:
    graph, x = graph_and_features(seed)
    graph.ndata["feat"] = x
    return (graph,)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    call: Callable[[int], tuple[Any, ...]]


CASES = {
    "gcn": Case(GCN, graph_and_features),
    "gat": Case(GAT, graph_and_features),
    "gatv2": Case(GATv2, graph_and_features),
    "sage": Case(SAGE, graph_and_features),
    "rgcn": Case(RGCN, with_etypes),
    "blocks": Case(Blocks, blocks_and_features),
    "pyg": Case(PyG, edge_index),
    "hetero": Case(Hetero, typed_graph),
    "data": Case(OnData, data_object),
}
