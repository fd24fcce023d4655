"""Batches of interactions and triples, each with something that did not happen."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.kgat import CollaborativeGraph


def batches(data: RecommendationData, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All training interactions once, in random order: users, items and, for each, an item that is not a train item.

    Args:
        size: of a batch; the last one takes the rest.

    Raises:
        ValueError: a user has all items.
    """
    if torch.bincount(data.train[:, 0], minlength=data.users).max() == data.items:
        raise ValueError(f"{data.name}: a user has all {data.items} items, so there is no negative for it")
    keys = data.train @ torch.tensor([data.items, 1])
    for batch in data.train[torch.randperm(len(data.train), generator=generator)].split(size):
        users, positives = batch.unbind(1)
        negatives = _unless_known(keys, users * data.items, data.items, generator)
        yield users.contiguous(), positives.contiguous(), negatives


def false_triples(graph: CollaborativeGraph, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    """All edges of a graph once, in random order: heads, relations, tails and, for each, a tail that makes it false."""
    nodes = int(max(graph.head.max(), graph.tail.max())) + 1
    prefix = (graph.relation * nodes + graph.head) * nodes
    keys = (prefix + graph.tail).sort().values
    for edges in torch.randperm(len(prefix), generator=generator).split(size):
        false = _unless_known(keys, prefix[edges], nodes, generator)
        yield graph.head[edges], graph.relation[edges], graph.tail[edges], false


def _unless_known(keys: Tensor, prefix: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """For each of ``prefix`` [B] a number below ``count``, drawn until their sum is not among the sorted ``keys``."""
    drawn = torch.randint(count, prefix.shape, generator=generator)
    known = torch.arange(len(prefix))
    while len(known):
        wanted = prefix[known] + drawn[known]
        place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        known = known[keys[place] == wanted]
        drawn[known] = torch.randint(count, known.shape, generator=generator)
    return drawn
