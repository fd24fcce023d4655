"""Recall and NDCG of the best items that a user has not been trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from examples.recommendation.datasets import RecommendationData

BATCH = 64  # users


class Ranking(NamedTuple):
    """Means over the users that have test items, from 0 to 1."""

    recall: float
    ndcg: float


@torch.no_grad()
def evaluate(
    score: Callable[[Tensor], Tensor], data: RecommendationData, k: int = 20, each: Callable[[int], None] | None = None
) -> Ranking:
    """Rank all items but the user's train items; ties go to either.

    Args:
        score: from users [B] to scores [B, items].
        k: how many of the best items count.
        each: called with the number of users done after each batch.
    """
    train, test = (_rows(pairs, data.users) for pairs in (data.train, data.test))
    users = torch.unique(data.test[:, 0])
    k = min(k, data.items)
    gains = 1 / torch.log2(torch.arange(k, dtype=torch.float64) + 2)
    best_gains = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
    recall, ndcg = 0.0, 0.0
    for batch in users.split(BATCH):
        scores = score(batch).masked_fill(_mask(train, batch, data.items), -torch.inf)
        relevant = _mask(test, batch, data.items)
        counts = relevant.sum(1)
        hits = relevant.gather(1, scores.topk(k).indices).double()
        recall += (hits.sum(1) / counts).sum().item()
        ndcg += (hits @ gains / best_gains[counts.clamp(max=k)]).sum().item()
        if each is not None:
            each(len(batch))
    return Ranking(recall / len(users), ndcg / len(users))


def _rows(pairs: Tensor, users: int) -> tuple[Tensor, Tensor]:
    """Pairs sorted by user as rows of a CSR matrix: where a row begins, and the items."""
    ends = torch.bincount(pairs[:, 0], minlength=users).cumsum(0)
    return torch.cat([ends.new_zeros(1), ends]), pairs[:, 1]


def _mask(rows: tuple[Tensor, Tensor], users: Tensor, items: int) -> Tensor:
    """[B, items] bool: which items the rows of users hold."""
    begin, values = rows
    counts = begin[users + 1] - begin[users]
    row = torch.repeat_interleave(torch.arange(len(users)), counts)
    place = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row] + begin[users][row]
    mask = torch.zeros(len(users), items, dtype=torch.bool)
    mask[row, values[place]] = True
    return mask
