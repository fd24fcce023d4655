"""Wang et al., "Knowledge graph convolutional networks for recommender systems" (KGCN, WWW 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.recommender import Recommender, bpr, half_square

NEIGHBOURS = 4


class Neighbours(NamedTuple):
    """A few neighbours of each entity, drawn once.

    Attributes:
        entity, relation: [entities, K] int32. An entity without neighbours has itself K times, by an extra relation.
        liked: [n] int64, ``user * items + item`` of the training interactions, sorted.
    """

    entity: Tensor
    relation: Tensor
    liked: Tensor


class Field(NamedTuple):
    """The receptive field of a batch of items, hop by hop.

    Attributes:
        entities: for hop 0 to H, [B, K^hop] int32; entity i of a hop has neighbours i * K to i * K + K - 1 of the next.
        relations: to the entities of hop 1 to H.
    """

    entities: list[Tensor]
    relations: list[Tensor]


class KGCN(Recommender):
    """An item is seen through a user: its neighbours are weighted by what their relation means to the user.

    The receptive field of an item is expanded for each user, so this is no propagation over the whole graph.
    """

    def __init__(self, data: RecommendationData, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.items = data.items
        self.users = nn.Embedding(data.users, width)
        self.entities = nn.Embedding(data.entities, width)
        self.relations = nn.Embedding(data.relations + 1, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for table in (self.users, self.entities, self.relations, *self.layers):
            nn.init.xavier_uniform_(table.weight)

    @staticmethod
    def graph_of(data: RecommendationData) -> Neighbours:
        """Draw K neighbours of each entity, as far as there are as many without replacement."""
        head, relation, tail = data.triples.unbind(1)
        heads, tails, kinds = torch.cat([head, tail]), torch.cat([tail, head]), relation.repeat(2)
        order = torch.randperm(len(heads), generator=torch.Generator().manual_seed(0))
        order = order[torch.argsort(heads[order], stable=True)]
        counts = torch.bincount(heads, minlength=data.entities)
        place = torch.arange(NEIGHBOURS) % counts.clamp(min=1)[:, None]
        edge = order[(place + (counts.cumsum(0) - counts)[:, None]).clamp(max=len(order) - 1)]
        alone = (counts == 0)[:, None]
        user, item = data.train.unbind(1)
        return Neighbours(
            torch.where(alone, torch.arange(data.entities)[:, None], tails[edge]).int(),
            torch.where(alone, data.relations, kinds[edge]).int(),
            user * data.items + item,
        )

    def field(self, graph: Neighbours, items: Tensor) -> Field:
        """Expand items [B]."""
        entities, relations = [items[:, None].int()], []
        for _ in self.layers:
            flat = entities[-1].flatten()
            entities.append(graph.entity.index_select(0, flat).view(len(items), -1))
            relations.append(graph.relation.index_select(0, flat).view(len(items), -1))
        return Field(entities, relations)

    def weights(self, users: Tensor, relations: Tensor) -> Tensor:
        """What relations [B, n * K] mean to users [B, D]: softmax over K neighbours, [B, n, K] (equations 1 and 3)."""
        scores = users @ self.relations.weight.T
        place = relations + scores.shape[1] * torch.arange(len(users), dtype=torch.int32)[:, None]
        scores = scores.view(-1).index_select(0, place.view(-1))
        return torch.softmax(scores.view(len(users), -1, NEIGHBOURS), dim=2)

    def seen_by(self, users: Tensor, field: Field, weights: list[Tensor]) -> Tensor:
        """The items of a field as users [B, D] see them, [B, D] (algorithm 1, sum aggregator)."""
        hops = [self.entities(entities) for entities in field.entities]
        for depth in range(len(self.layers)):
            hops = self.propagate(depth, weights, hops)
        return hops[0].view(users.shape)

    def propagate(self, depth: int, weights: list[Tensor], hops: list[Tensor]) -> list[Tensor]:
        """A layer's entities of hop 0, 1, ... [B, K^hop, D] from those of the one before, which has a hop more."""
        batch, _, width = hops[0].shape
        activation = torch.tanh if depth == len(self.layers) - 1 else F.relu
        after = []
        for x, weight, around in zip(hops[:-1], weights, hops[1:], strict=False):
            around = around.view(batch, -1, NEIGHBOURS, width)
            after.append(activation(self.layers[depth](x + (weight[..., None] * around).sum(2))))
        return after

    def forward(self, graph: Neighbours, users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        return self.ranking(graph, users, positives, negatives)[0]

    def ranking(
        self, graph: Neighbours, users: Tensor, positives: Tensor, negatives: Tensor
    ) -> tuple[Tensor, Field, list[Tensor]]:
        """The loss, and what it was computed on: the field of both items of a pair, and its weights."""
        at = self.users(users)
        both, items = torch.cat([at, at]), torch.cat([positives, negatives])
        field = self.field(graph, items)
        weights = [self.weights(both, relations) for relations in field.relations]
        liked, other = self.seen_by(both, field, weights).chunk(2)
        loss = bpr(at, liked, other) + self.decay * half_square(at, *(self.entities(i) for i in (positives, negatives)))
        return loss, field, weights

    @torch.no_grad()
    def scorer(self, graph: Neighbours) -> Callable[[Tensor], Tensor]:
        """Propagates over all entities for each user, so that what fields of different items share is computed once."""
        self.eval()

        def scores(batch: Tensor) -> Tensor:
            return torch.stack([self._seen_items(user, graph) @ user for user in self.users(batch)])

        return scores

    def _seen_items(self, user: Tensor, graph: Neighbours) -> Tensor:
        """All items as a user [D] sees them, [I, D]; as many users at a time as stay in the cache: one."""
        # Over the first axis a softmax of few values is vectorised.
        weights = torch.softmax((self.relations.weight @ user)[graph.relation.T], dim=0).T.contiguous()
        x = self.entities.weight
        for layer in self.layers[:-1]:
            around = F.embedding_bag(graph.entity, x, per_sample_weights=weights, mode="sum")
            x = layer(around.add_(x)).relu_()
        # Nothing reads the other entities any more.
        around = F.embedding_bag(graph.entity[: self.items], x, per_sample_weights=weights[: self.items], mode="sum")
        return self.layers[-1](around.add_(x[: self.items])).tanh_()
