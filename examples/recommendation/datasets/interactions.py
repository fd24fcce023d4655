from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RecommendationData:
    """Who liked what, and a knowledge graph about the items.

    Attributes:
        name: what tables call it.
        users, items, entities, relations: how many; items are the first entities.
        train, test: [n, 2] int64, a user and an item; sorted by user, then item; no pair twice, none in both.
        triples: [T, 3] int64, head, relation and tail; no triple twice.
    """

    name: str
    users: int
    items: int
    entities: int
    relations: int
    train: Tensor
    test: Tensor
    triples: Tensor

    @classmethod
    def split(
        cls, name: str, interactions: np.ndarray, triples: np.ndarray, sizes: tuple[int, int, int, int], seed: int = 0
    ) -> RecommendationData:
        """Hold a fifth of each user's items out, as in the papers of the models.

        Args:
            interactions: [n, 2], a user and an item, no pair twice.
            triples: [T, 3].
            sizes: users, items, entities and relations.
            seed: of the split. A user keeps at least one item to train with.
        """
        users, items = interactions[:, 0], interactions[:, 1]
        order = np.lexsort((np.random.default_rng(seed).random(len(users)), users))
        users, items = users[order], items[order]
        counts = np.bincount(users, minlength=sizes[0])
        place = np.arange(len(users)) - (np.cumsum(counts) - counts)[users]
        held_out = place >= counts[users] - np.rint(counts[users] * 0.2).astype(np.int64)
        parts = []
        for part in (~held_out, held_out):
            pairs = np.stack([users[part], items[part]], axis=1)
            parts.append(torch.from_numpy(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int64)))
        return cls(name, *sizes, *parts, torch.from_numpy(triples.astype(np.int64)))

    def summary(self) -> str:
        interactions = len(self.train) + len(self.test)
        return (
            f"{self.name}: {self.users:,} users, {self.items:,} items, {interactions:,} interactions; "
            f"{self.entities:,} entities, {self.relations} relations, {len(self.triples):,} triples"
        )
