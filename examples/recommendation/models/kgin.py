"""Wang et al., "Learning intents behind interactions with knowledge graph for recommendation" (KGIN, WWW 2021)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.recommender import Recommender, aggregate, bpr, by_destination, half_square


class IntentGraph(NamedTuple):
    """Triples in both directions by head, and interactions by user.

    Attributes:
        tail, head, relation: [E] int64; messages go from tails to heads; an inverse relation is one of its own.
        inverse_degree: [entities, 1] float32, one over the number of edges of a head.
        item, user: [n] int64, what users liked.
        inverse_count: [users, 1] float32, one over the number of items of a user.
    """

    tail: Tensor
    head: Tensor
    relation: Tensor
    inverse_degree: Tensor
    item: Tensor
    user: Tensor
    inverse_count: Tensor


class KGIN(Recommender):
    """Users as mixtures of intents, intents as mixtures of relations, and paths that remember their relations."""

    def __init__(
        self,
        data: RecommendationData,
        width: int = 64,
        layers: int = 3,
        intents: int = 4,
        dropout: float = 0.1,
        independence: float = 1e-4,
    ) -> None:
        super().__init__()
        self.items, self.layers, self.independence = data.items, layers, independence
        self.users = nn.Embedding(data.users, width)
        self.entities = nn.Embedding(data.entities, width)
        self.relations = nn.Embedding(2 * data.relations, width)
        self.intents = nn.Parameter(torch.empty(intents, 2 * data.relations))
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.xavier_uniform_(parameter)

    @staticmethod
    def graph_of(data: RecommendationData) -> IntentGraph:
        head, relation, tail = data.triples.unbind(1)
        kinds = torch.cat([relation, relation + data.relations])
        tail, head, kinds = by_destination(torch.cat([tail, head]), torch.cat([head, tail]), kinds)
        user, item = data.train.unbind(1)
        return IntentGraph(
            tail, head, kinds, _inverse_counts(head, data.entities), item, user, _inverse_counts(user, data.users)
        )

    def intent_embeddings(self) -> Tensor:
        """[intents, width]: relations mixed by attention (equation 1)."""
        return torch.softmax(self.intents, dim=1) @ self.relations.weight

    def embeddings(self, graph: IntentGraph) -> tuple[Tensor, Tensor]:
        """Users [users, width] and entities [entities, width], summed up over layers."""
        intents = self.intent_embeddings()
        users, entities = self.users.weight, self.entities.weight
        all_users, all_entities = users, entities
        for _ in range(self.layers):
            users, entities = self.propagate(graph, intents, users, entities)
            all_users, all_entities = all_users + users, all_entities + entities
        return all_users, all_entities

    def propagate(self, graph: IntentGraph, intents: Tensor, users: Tensor, entities: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's users [users, width] and entities [entities, width] from those of the one before."""
        # Equation 12: the embedding of a path's first relation times what the tail has gathered.
        messages = self.relations(graph.relation) * entities.index_select(0, graph.tail)
        liked = aggregate(entities.index_select(0, graph.item), graph.user, len(users)) * graph.inverse_count
        entities = aggregate(messages, graph.head, len(entities)) * graph.inverse_degree
        # Equations 8 and 9: the items of a user, weighted by its attention to the intents.
        users = liked * (torch.softmax(users @ intents.T, dim=1) @ intents)
        return F.normalize(self.dropout(users)), F.normalize(self.dropout(entities))

    def forward(self, graph: IntentGraph, users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        all_users, all_entities = self.embeddings(graph)
        rows = [all_users.index_select(0, users), *(all_entities.index_select(0, i) for i in (positives, negatives))]
        loss = bpr(*rows) + self.decay * half_square(*rows)
        return loss + self.independence * distance_correlations(self.intent_embeddings())

    @torch.no_grad()
    def scorer(self, graph: IntentGraph) -> Callable[[Tensor], Tensor]:
        users, entities = self.eval().embeddings(graph)
        items = entities[: self.items]
        return lambda batch: users[batch] @ items.T


def distance_correlations(vectors: Tensor) -> Tensor:
    """Distance correlations (Székely et al. 2007) of each two of the vectors [n, D], summed up (equation 6)."""
    distances = (vectors[:, :, None] - vectors[:, None, :]).abs()
    rows, columns, total = (distances.mean(axis, keepdim=True) for axis in (1, 2, (1, 2)))
    centred = (distances - rows - columns + total).flatten(1)
    covariances = centred @ centred.T / centred.shape[1]
    variances = covariances.diagonal()
    first, second = (list(index) for index in zip(*combinations(range(len(vectors)), 2), strict=True))
    # Squares of distance covariances are not negative; rounding may make them so, and the root of 0 has no gradient.
    both = (covariances[first, second].clamp(min=0) + 1e-8).sqrt()
    return (both / ((variances[first] * variances[second]).clamp(min=0).sqrt() + 1e-8).sqrt()).sum()


def _inverse_counts(index: Tensor, num: int) -> Tensor:
    return 1.0 / torch.bincount(index, minlength=num).clamp(min=1).float()[:, None]
