"""Wang et al., "KGAT: knowledge graph attention network for recommendation" (KDD 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.recommender import Recommender, aggregate, bpr, by_destination, half_square


class CollaborativeGraph(NamedTuple):
    """Triples and interactions as one graph, each edge in both directions, by head.

    Attributes:
        tail, head, relation: [E] int64; nodes are the entities, then the users. Messages go from tails to heads. An
            inverse relation is one of its own, and the last two are those of interactions.
    """

    tail: Tensor
    head: Tensor
    relation: Tensor


class TransR(nn.Module):
    """Lin et al. (AAAI 2015), on the embeddings of a model: the loss of triples [B] and tails that make them false.

    The plausibility of a triple is ``g = ||W_r e_h + e_r - W_r e_t||²`` (KGAT, equation 1), smaller where it is true.
    """

    def __init__(self, nodes: nn.Embedding, relations: int, decay: float) -> None:
        super().__init__()
        width = nodes.embedding_dim
        self.nodes, self.decay = nodes, decay
        self.relations = nn.Embedding(relations, width)
        self.projections = nn.Parameter(torch.empty(relations, width, width))
        nn.init.xavier_uniform_(self.relations.weight)
        nn.init.xavier_uniform_(self.projections)

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor, false_tail: Tensor) -> Tensor:
        ends = torch.stack([self.nodes(head), self.nodes(tail), self.nodes(false_tail)], dim=1)
        head_at, tail_at, false_at = torch.bmm(ends, self.projections[relation]).unbind(1)
        translated = head_at + self.relations(relation)
        plausible, false = ((translated - x).square().sum(1) for x in (tail_at, false_at))
        loss = F.softplus(plausible - false).mean()
        return loss + self.decay * half_square(head_at, self.relations(relation), tail_at, false_at)

    def attention(self, graph: CollaborativeGraph) -> Tensor:
        """Weights of edges [E]: softmax over the edges of a head of ``(W_r e_t)' tanh(W_r e_h + e_r)`` (equation 4)."""
        logits = torch.empty(len(graph.head))
        for relation, projection in enumerate(self.projections):
            edges = torch.nonzero(graph.relation == relation).flatten()
            head, tail = (self.nodes(end[edges]) @ projection for end in (graph.head, graph.tail))
            logits[edges] = (tail * torch.tanh(head + self.relations.weight[relation])).sum(1)
        nodes = self.nodes.num_embeddings
        largest = logits.new_full((nodes,), -torch.inf).scatter_reduce(0, graph.head, logits, "amax")
        weights = torch.exp(logits - largest[graph.head])
        return weights / weights.new_zeros(nodes).index_add(0, graph.head, weights)[graph.head]


class BiInteraction(nn.Module):
    """Sum and product of a node and its neighbourhood, each with weights of its own (equation 8)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.sum, self.product = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.sum, self.product):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor, around: Tensor) -> Tensor:
        return self.dropout(F.leaky_relu(self.sum(x + around)) + F.leaky_relu(self.product(x * around)))


class KGAT(Recommender):
    """Attentive embedding propagation over the collaborative graph; attention is learned by TransR in turn.

    ``refresh`` computes the attention anew, which is constant in between. An embedding is all layers' side by side.
    """

    def __init__(self, data: RecommendationData, width: int = 64, layers: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.items, self.entities = data.items, data.entities
        self.nodes = nn.Embedding(data.entities + data.users, width)
        nn.init.xavier_uniform_(self.nodes.weight)
        self.alternated = TransR(self.nodes, 2 * (data.relations + 1), self.decay)
        self.layers = nn.ModuleList(BiInteraction(width, dropout) for _ in range(layers))
        self.register_buffer("attention", torch.zeros(2 * (len(data.triples) + len(data.train))), persistent=False)

    @staticmethod
    def graph_of(data: RecommendationData) -> CollaborativeGraph:
        head, relation, tail = data.triples.unbind(1)
        user, item = data.train.unbind(1)
        user = user + data.entities
        count = data.relations
        tails = torch.cat([tail, head, item, user])
        heads = torch.cat([head, tail, user, item])
        kinds = [relation, relation + count, torch.full_like(user, 2 * count), torch.full_like(user, 2 * count + 1)]
        return CollaborativeGraph(*by_destination(tails, heads, torch.cat(kinds)))

    @torch.no_grad()
    def refresh(self, graph: CollaborativeGraph) -> None:
        self.attention.copy_(self.alternated.attention(graph))

    def embeddings(self, graph: CollaborativeGraph) -> Tensor:
        """[entities + users, width * (layers + 1)]"""
        x = self.nodes.weight
        result = [x]
        for layer in self.layers:
            x = self.propagate(layer, graph, x)
            result.append(F.normalize(x))
        return torch.cat(result, dim=1)

    def propagate(self, layer: nn.Module, graph: CollaborativeGraph, x: Tensor) -> Tensor:
        """A layer's embeddings [entities + users, width] from those of the one before."""
        messages = self.attention[:, None] * x.index_select(0, graph.tail)
        return layer(x, aggregate(messages, graph.head, len(x)))

    def forward(self, graph: CollaborativeGraph, users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        x = self.embeddings(graph)
        rows = [x.index_select(0, nodes) for nodes in (self.entities + users, positives, negatives)]
        return bpr(*rows) + self.decay * half_square(*rows)

    @torch.no_grad()
    def scorer(self, graph: CollaborativeGraph) -> Callable[[Tensor], Tensor]:
        x = self.eval().embeddings(graph)
        items, users = x[: self.items], x[self.entities :]
        return lambda batch: users[batch] @ items.T
