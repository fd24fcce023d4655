from __future__ import annotations

from dataclasses import dataclass, replace

import dgl
import torch
from torch import Tensor


@dataclass(frozen=True)
class NodeData:
    """One graph with a label on each of its N nodes.

    Attributes:
        name: what tables call it.
        graph: N nodes, each undirected edge in both directions, no duplicates, no self-loops, int32 ids.
        features: [N, F] float32.
        labels: [N] int64, 0 .. classes - 1.
        train, val, test: [N] bool, disjoint.
        metric: a key of :data:`examples.metrics.METRICS`.
    """

    name: str
    graph: dgl.DGLGraph
    features: Tensor
    labels: Tensor
    classes: int
    train: Tensor
    val: Tensor
    test: Tensor
    metric: str = "accuracy"

    def with_self_loops(self) -> NodeData:
        """The same data with an edge from each node to itself, as GCN and GAT are defined."""
        return replace(self, graph=dgl.add_self_loop(self.graph))

    def summary(self) -> str:
        nodes, width = self.features.shape
        return (
            f"{self.name}: {nodes:,} nodes, {self.graph.num_edges():,} edges, {width} features, {self.classes} classes"
        )


def undirected(source: Tensor, target: Tensor, nodes: int) -> dgl.DGLGraph:
    """Graph over ``nodes`` nodes with both directions of each edge, self-loops and duplicates dropped."""
    low, high = torch.minimum(source, target), torch.maximum(source, target)
    pairs = torch.unique((low * nodes + high)[low != high])
    low, high = pairs // nodes, pairs % nodes
    ends = torch.cat([low, high]), torch.cat([high, low])
    return dgl.graph(ends, num_nodes=nodes, idtype=torch.int32)
