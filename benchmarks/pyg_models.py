"""The models of :mod:`examples.models` written with PyG, as a peer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from examples import models
from examples.datasets import NodeData


class Peer(nn.Module):
    """Two PyG convolutions called like a DGL model."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, data: NodeData, dropout: float, activation: str) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2
        self.edge_index = torch.stack([end.long() for end in data.graph.edges(order="srcdst")])
        self.dropout = nn.Dropout(dropout)
        self.activation = getattr(F, activation)

    def forward(self, graph: object, x: Tensor) -> Tensor:
        x = self.activation(self.conv1(self.dropout(x), self.edge_index))
        return self.conv2(self.dropout(x), self.edge_index)


def pyg_peer(model: nn.Module, data: NodeData) -> Peer:
    """The PyG model of the same layers as a DGL model; ``data.graph`` has its self-loops already.

    Raises:
        TypeError: the model is none of GCN, GAT and SAGE.
    """
    width = data.features.shape[1]
    if isinstance(model, models.GCN):
        hidden = model.conv1.weight.shape[1]
        convs = [
            GCNConv(*size, cached=True, add_self_loops=False) for size in ((width, hidden), (hidden, data.classes))
        ]
        return Peer(*convs, data, model.dropout.p, "relu")
    if isinstance(model, models.SAGE):
        hidden = model.conv1.fc_self.weight.shape[0]
        return Peer(SAGEConv(width, hidden), SAGEConv(hidden, data.classes), data, model.dropout.p, "relu")
    if isinstance(model, models.GAT):
        first, last, drop = model.conv1, model.conv2, model.conv1.feat_drop.p
        heads, hidden = first.attn_l.shape[1:]
        conv1 = GATConv(width, hidden, heads, dropout=drop, add_self_loops=False)
        conv2 = GATConv(
            heads * hidden, data.classes, last.attn_l.shape[1], concat=False, dropout=drop, add_self_loops=False
        )
        return Peer(conv1, conv2, data, drop, "elu")
    raise TypeError(f"there is no PyG peer of {type(model).__name__}")
