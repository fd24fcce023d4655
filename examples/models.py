"""Plain DGL models: nothing here knows about gqc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import dgl
import dgl.nn as dglnn
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.datasets import NodeData


class GCN(nn.Module):
    """Kipf and Welling, "Semi-supervised classification with graph convolutional networks" (ICLR 2017)."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.conv1 = dglnn.GraphConv(features, hidden)
        self.conv2 = dglnn.GraphConv(hidden, classes)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(graph, self.dropout(x)))
        return self.conv2(graph, self.dropout(x))


class GAT(nn.Module):
    """Velickovic et al., "Graph attention networks" (ICLR 2018), or with ``GATv2Conv`` Brody et al. (2022)."""

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        conv: Callable[..., nn.Module] = dglnn.GATConv,
    ) -> None:
        super().__init__()
        self.conv1 = conv(features, hidden, heads, dropout, dropout, activation=F.elu)
        self.conv2 = conv(heads * hidden, classes, out_heads, dropout, dropout)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        x = self.conv1(graph, x).flatten(1)
        return self.conv2(graph, x).mean(1)


class SAGE(nn.Module):
    """Hamilton et al., "Inductive representation learning on large graphs" (NeurIPS 2017), mean aggregator."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.conv1 = dglnn.SAGEConv(features, hidden, "mean")
        self.conv2 = dglnn.SAGEConv(hidden, classes, "mean")

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(graph, self.dropout(x)))
        return self.conv2(graph, self.dropout(x))


@dataclass(frozen=True)
class Recipe:
    """A model with the hyper-parameters of its paper.

    Attributes:
        build: ``(features, hidden, classes) -> Module``.
        decay: weight decay (L2), of the first layer only where ``decay_first_layer``.
        self_loops: whether the graph gets self-loops.
    """

    build: Callable[[int, int, int], nn.Module]
    hidden: int
    lr: float
    decay: float = 5e-4
    decay_first_layer: bool = False
    self_loops: bool = True

    def model(self, data: NodeData, hidden: int | None = None) -> nn.Module:
        return self.build(data.features.shape[1], hidden or self.hidden, data.classes)

    def prepare(self, data: NodeData) -> NodeData:
        return data.with_self_loops() if self.self_loops else data

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        decayed = [p for name, p in model.named_parameters() if not self.decay_first_layer or name.startswith("conv1.")]
        rest = [p for p in model.parameters() if all(p is not q for q in decayed)]
        groups = [{"params": decayed, "weight_decay": self.decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.Adam([group for group in groups if group["params"]], lr=self.lr)


def recipe(model: str, data: str = "") -> Recipe:
    """The recipe of one of :data:`RECIPES`, with what is special to a data set."""
    return SPECIAL.get((model, data)) or RECIPES[model]


RECIPES = {
    "gcn": Recipe(GCN, hidden=16, lr=0.01, decay_first_layer=True),
    "gat": Recipe(GAT, hidden=8, lr=0.005),
    "sage": Recipe(SAGE, hidden=16, lr=0.01, self_loops=False),
    "gatv2": Recipe(partial(GAT, conv=dglnn.GATv2Conv), hidden=8, lr=0.005),
}
SPECIAL = {
    # GAT, section 3.3
    ("gat", "pubmed"): replace(RECIPES["gat"], build=partial(GAT, out_heads=8), lr=0.01, decay=1e-3),
    # Shchur et al., "Pitfalls of graph neural network evaluation" (2018): wider layers
    ("gcn", "photo"): replace(RECIPES["gcn"], hidden=64),
    # Thousands of labels instead of a few dozen: wider layers, less regularisation.
    ("gcn", "blocks"): Recipe(GCN, hidden=128, lr=0.01, decay=0),
    ("gat", "blocks"): Recipe(partial(GAT, dropout=0.2), hidden=16, lr=0.01, decay=0),
    ("sage", "blocks"): Recipe(SAGE, hidden=128, lr=0.01, decay=0, self_loops=False),
}
