"""Wang et al., "Knowledge-aware graph neural networks with label smoothness regularization" (KGNN-LS, KDD 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.kgcn import KGCN, NEIGHBOURS, Field, Neighbours

UNKNOWN = 0.5  # the label of entities that are no items


class KGNNLS(KGCN):
    """KGCN whose weights of edges must also let labels propagate: what a user likes lies close together in its graph.

    Args:
        smoothness: factor of the label smoothness in the loss, the paper's λ (table 3).
    """

    def __init__(self, data: RecommendationData, width: int = 64, layers: int = 3, smoothness: float = 0.1) -> None:
        super().__init__(data, width, layers)
        self.smoothness = smoothness

    def forward(self, graph: Neighbours, users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        loss, field, weights = self.ranking(graph, users, positives, negatives)
        predicted = self.propagated(graph, users.repeat(2), field, weights).clamp(1e-6, 1 - 1e-6)
        likely, unlikely = predicted.chunk(2)
        return loss - self.smoothness * (likely.log() + (1 - unlikely).log()).mean()

    def propagated(self, graph: Neighbours, users: Tensor, field: Field, weights: list[Tensor]) -> Tensor:
        """Labels of a field's items [B] as their neighbours tell them, their own held out (equation 8).

        At each step an entity takes the weighted mean of its neighbours' labels, and the other items of the training
        set take theirs again.
        """
        known, labels = zip(*(self.labels(graph, users, field.entities[0], hop) for hop in field.entities), strict=True)
        hops = list(labels)
        for _ in self.layers:
            after = []
            for fixed, own, weight, around in zip(known, labels, weights, hops[1:], strict=False):
                mean = (weight * around.view(len(users), -1, NEIGHBOURS)).sum(2)
                after.append(torch.where(fixed, own, mean))
            hops = after
        return hops[0].flatten()

    def labels(self, graph: Neighbours, users: Tensor, held_out: Tensor, entities: Tensor) -> tuple[Tensor, Tensor]:
        """Which entities [B, n] have a label for their user, and that label: 1 for what it likes, 0 for other items."""
        keys = users[:, None] * self.items + entities
        place = torch.searchsorted(graph.liked, keys).clamp(max=len(graph.liked) - 1)
        is_item = entities < self.items
        liked = is_item & (graph.liked[place] == keys)
        known = is_item & (entities != held_out)
        return known, torch.where(known, liked.float(), UNKNOWN)
