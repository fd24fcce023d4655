"""The networks of the benchmark on torch's own CSR matrices (MKL): what can be assembled from what exists, by hand."""

from __future__ import annotations

from typing import Any

import dgl
import dgl.nn as dglnn
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from benchmarks.models import DglNet


class Adjacency:
    """The edges of a graph sorted by target, and by source.

    Attributes:
        rows, columns: target and source of each edge, by target; int64 ``[E]``.
        bounds: where the edges of each target begin; int64 ``[N + 1]``.
        to_transposed: the place by target of each edge by source; int64 ``[E]``.
        transposed_bounds: where the edges of each source begin; int64 ``[N + 1]``.
    """

    def __init__(self, graph: dgl.DGLGraph) -> None:
        sources, targets = (end.long() for end in graph.edges())
        by_target = targets.argsort(stable=True)
        self.rows, self.columns = targets[by_target], sources[by_target]
        self.bounds = _bounds(self.rows, graph.num_nodes())
        self.to_transposed = self.columns.argsort(stable=True)
        self.transposed_bounds = _bounds(self.columns, graph.num_nodes())
        self._forward = self.bounds.int(), self.columns.int()
        self._backward = self.transposed_bounds.int(), self.rows[self.to_transposed].int()

    def matrix(self, values: Tensor) -> Tensor:
        """CSR of edge weights ``[E]``, one row a target."""
        return _csr(*self._forward, values)

    def transposed(self, values: Tensor) -> Tensor:
        """CSR of the same weights, one row a source."""
        return _csr(*self._backward, values[self.to_transposed])

    def degrees(self) -> Tensor:
        """In-degrees, at least 1; float32 ``[N]``."""
        return self.bounds.diff().clamp(min=1).float()


def _bounds(sorted_ends: Tensor, nodes: int) -> Tensor:
    return F.pad(torch.bincount(sorted_ends, minlength=nodes).cumsum(0), (1, 0))


def _csr(bounds: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    nodes = len(bounds) - 1
    return torch.sparse_csr_tensor(bounds, columns, values, (nodes, nodes), check_invariants=False)


class _Aggregate(torch.autograd.Function):
    """``matrix @ x`` for a matrix that never changes, whose transposed was made before."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ gradient


class _Attend(torch.autograd.Function):
    """The sum of sources' features, weighted by the attention of one head."""

    @staticmethod
    def forward(ctx: Any, edges: Adjacency, attention: Tensor, x: Tensor) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(attention, x)
        return edges.matrix(attention) @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        attention, x = ctx.saved_tensors
        pattern = ctx.edges.matrix(torch.zeros_like(attention))
        of_attention = torch.sparse.sampled_addmm(pattern, gradient, x.t(), beta=0.0).values()
        return None, of_attention, ctx.edges.transposed(attention) @ gradient


class _AddEnds(torch.autograd.Function):
    """``of_sources[u] + of_targets[v]`` for each edge; its gradient is summed by segments of sorted edges."""

    @staticmethod
    def forward(ctx: Any, edges: Adjacency, of_sources: Tensor, of_targets: Tensor) -> Tensor:
        ctx.edges = edges
        return of_sources[edges.columns] + of_targets[edges.rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        edges = ctx.edges
        of_sources = _sum(gradient[edges.to_transposed], edges.transposed_bounds)
        return None, of_sources, _sum(gradient, edges.bounds)


class _Softmax(torch.autograd.Function):
    """Softmax over the edges into each target."""

    @staticmethod
    def forward(ctx: Any, edges: Adjacency, scores: Tensor) -> Tensor:
        largest = torch.segment_reduce(scores, "max", offsets=edges.bounds, unsafe=True)
        powers = (scores - largest[edges.rows]).exp()
        attention = powers / _sum(powers, edges.bounds)[edges.rows]
        ctx.edges = edges
        ctx.save_for_backward(attention)
        return attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (attention,) = ctx.saved_tensors
        weighted = attention * gradient
        return None, weighted - attention * _sum(weighted, ctx.edges.bounds)[ctx.edges.rows]


def _sum(values: Tensor, bounds: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", offsets=bounds, unsafe=True)


class _Convolution(nn.Module):
    """A layer of DGL with a sum of neighbours, in or out of which rows are scaled by a fixed matrix."""

    def __init__(self, conv: nn.Module, edges: Adjacency) -> None:
        super().__init__()
        self.conv = conv
        weights = self.weights(edges)
        self._matrices = edges.matrix(weights), edges.transposed(weights)

    def weights(self, edges: Adjacency) -> Tensor:
        return torch.ones(len(edges.rows))

    def aggregate(self, x: Tensor) -> Tensor:
        return _Aggregate.apply(*self._matrices, x)


class _Gcn(_Convolution):
    def weights(self, edges: Adjacency) -> Tensor:
        # The graph is symmetric: out-degrees are in-degrees.
        norm = edges.degrees().rsqrt()
        return norm[edges.rows] * norm[edges.columns]

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        wide = weight.shape[0] > weight.shape[1]
        return (self.aggregate(x @ weight) if wide else self.aggregate(x) @ weight) + self.conv.bias


class _Sage(_Convolution):
    def weights(self, edges: Adjacency) -> Tensor:
        return edges.degrees().reciprocal()[edges.rows]

    def forward(self, x: Tensor) -> Tensor:
        neighbours = self.conv.fc_neigh
        wide = neighbours.in_features > neighbours.out_features
        return self.conv.fc_self(x) + (self.aggregate(neighbours(x)) if wide else neighbours(self.aggregate(x)))


class _Gin(_Convolution):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv.apply_func((1 + self.conv.eps) * x + self.aggregate(x))


class _Gat(nn.Module):
    def __init__(self, conv: dglnn.GATConv, edges: Adjacency) -> None:
        super().__init__()
        self.conv, self._edges = conv, edges

    def forward(self, x: Tensor) -> Tensor:
        conv, edges = self.conv, self._edges
        x = conv.fc(conv.feat_drop(x)).unflatten(1, (conv._num_heads, -1))
        scores = _AddEnds.apply(edges, (x * conv.attn_l).sum(-1), (x * conv.attn_r).sum(-1))
        attention = conv.attn_drop(_Softmax.apply(edges, conv.leaky_relu(scores)))
        heads = zip(attention.unbind(1), x.unbind(1), strict=True)
        out = torch.cat([_Attend.apply(edges, a.contiguous(), h.contiguous()) for a, h in heads], 1)
        return out + conv.bias


_LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    dglnn.GraphConv: _Gcn,
    dglnn.SAGEConv: _Sage,
    dglnn.GINConv: _Gin,
    dglnn.GATConv: _Gat,
}
ARCHITECTURES = ("gcn", "gat", "sage", "gin")
"""Names of the networks that :class:`SparseNet` has."""


class SparseNet(nn.Module):
    """The network, its weights and its graph; called like the network, whose graph argument it does not read."""

    def __init__(self, net: DglNet, graph: dgl.DGLGraph) -> None:
        super().__init__()
        edges = Adjacency(graph)
        self.layers = nn.ModuleList(_LAYERS[type(conv)](conv, edges) for conv in net.convs)
        self.dropout = net.dropout

    def forward(self, graph: object, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(x)))
        return self.layers[-1](x)
