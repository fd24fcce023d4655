"""Negatives, and Recall and NDCG against their definitions."""

import math

import numpy as np
import pytest
import torch

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.metrics import BATCH, evaluate
from examples.recommendation.models import KGAT
from examples.recommendation.sampling import batches, false_triples


def dense(users: int, items: int, share: float) -> RecommendationData:
    """Few items of which users like many, so that a negative drawn at random is often none."""
    liked = torch.rand(users, items) < share
    liked[:, 0], liked[:, 1] = True, False
    triples = np.unique(np.random.randint(0, items, (3 * items, 3)) % [items, 2, items], axis=0)
    return RecommendationData.split("dense", liked.nonzero().numpy(), triples, (users, items, items, 2))


def test_metrics_are_their_definitions() -> None:
    data = dense(BATCH + 30, 40, 0.3)
    scores = torch.randn(data.users, data.items)
    recall, ndcg = [], []
    for user in data.test[:, 0].unique().tolist():
        train, test = (set(p[p[:, 0] == user, 1].tolist()) for p in (data.train, data.test))
        ranked = [i for i in scores[user].argsort(descending=True).tolist() if i not in train][:5]
        recall.append(len(test & set(ranked)) / len(test))
        gain = sum(1 / math.log2(place + 2) for place, item in enumerate(ranked) if item in test)
        ndcg.append(gain / sum(1 / math.log2(place + 2) for place in range(min(5, len(test)))))
    counted = []
    found = evaluate(lambda users: scores[users], data, k=5, each=counted.append)
    assert found.recall == pytest.approx(np.mean(recall))
    assert found.ndcg == pytest.approx(np.mean(ndcg))
    assert sum(counted) == len(recall)


def test_negatives_are_never_train_items() -> None:
    data = dense(30, 12, 0.8)
    seen = []
    for users, positives, negatives in batches(data, 50, torch.Generator().manual_seed(0)):
        seen.append(torch.stack([users, positives], dim=1))
        pairs = torch.stack([users, negatives], dim=1)
        assert not (pairs[:, None] == data.train).all(2).any()
        assert negatives.max() < data.items
    assert torch.equal(torch.cat(seen).unique(dim=0), data.train)


def test_a_user_with_all_items_has_no_negative() -> None:
    pairs = np.stack([np.zeros(4), np.arange(4)], axis=1).astype(int)
    data = RecommendationData("all", 1, 4, 4, 1, torch.from_numpy(pairs), torch.empty(0, 2), torch.empty(0, 3))
    with pytest.raises(ValueError, match="all 4 items"):
        next(batches(data, 2, torch.Generator()))


def test_false_triples_are_false() -> None:
    graph = KGAT.graph_of(dense(8, 9, 0.5))
    true = torch.stack([graph.head, graph.relation, graph.tail], dim=1)
    seen = []
    for head, relation, tail, false in false_triples(graph, 30, torch.Generator().manual_seed(0)):
        seen.append(torch.stack([head, relation, tail], dim=1))
        assert not (torch.stack([head, relation, false], dim=1)[:, None] == true).all(2).any()
    assert torch.equal(torch.cat(seen).unique(dim=0), true.unique(dim=0))
