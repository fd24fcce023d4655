"""Trains a model, plain or compiled, and measures what a step keeps for the backward and how long it takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from examples.memory import saved_bytes
from examples.recommendation.datasets import RecommendationData
from examples.recommendation.metrics import Ranking, evaluate
from examples.recommendation.models import Recommender
from examples.recommendation.sampling import batches, false_triples

Batch = tuple[Tensor, Tensor, Tensor]


class Training:
    """A model in training on some data, by the papers' common recipe: BPR, Adam with a rate of 1e-3.

    Args:
        model: the plain model, whose initial weights stay for :meth:`restart`.
        prepare: what compiles it, and what is trained in turn with it.
        batch: interactions, and triples, a step.
    """

    def __init__(
        self,
        model: Recommender,
        data: RecommendationData,
        prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
        batch: int = 1024,
        rate: float = 1e-3,
    ) -> None:
        self.plain, self.data, self.batch, self.rate = model, data, batch, rate
        self.graph = model.graph_of(data)
        self.model = prepare(model)
        self.alternated = None if model.alternated is None else prepare(model.alternated)
        self.restart(model.state_dict(), 0)

    def restart(self, weights: Mapping[str, Any], seed: int) -> None:
        """Begin anew with some weights; batches and dropout follow the seed."""
        self.plain.load_state_dict(weights)
        self.plain.refresh(self.graph)
        self._generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self._optimizer = torch.optim.Adam(self.model.parameters(), self.rate)
        if self.alternated is not None:
            self._alternated_optimizer = torch.optim.Adam(self.alternated.parameters(), self.rate)

    def loss(self, batch: Batch) -> Tensor:
        return self.model(self.graph, *batch)

    def step(self, batch: Batch) -> float:
        """Forward, backward and update; returns the loss."""
        self._optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def epoch(self) -> float:
        """All interactions once, then all triples if a second model takes turns; returns the first one's mean loss."""
        self.model.train()
        losses = [self.step(batch) for batch in batches(self.data, self.batch, self._generator)]
        if self.alternated is not None:
            self.alternated.train()
            for triples in false_triples(self.graph, self.batch, self._generator):
                self._alternated_optimizer.zero_grad()
                self.alternated(*triples).backward()
                self._alternated_optimizer.step()
        self.plain.refresh(self.graph)
        return statistics.mean(losses)

    def endless(self) -> Iterator[Batch]:
        """Batches of one epoch after the other, the same for all trainings on the same data."""
        generator = torch.Generator().manual_seed(0)
        while True:
            yield from batches(self.data, self.batch, generator)

    def evaluate(self) -> Ranking:
        """Recall@20 and NDCG@20 of the test set, in full precision."""
        return evaluate(self.plain.scorer(self.graph), self.data)

    def saved_bytes(self) -> int:
        """What a step keeps from forward to backward, without parameters, the graph and the batch."""
        self.model.train()
        two = list(batches(self.data, self.batch, torch.Generator().manual_seed(0)))[:2]
        two *= 2 // len(two)
        drawn = iter(two)  # what is computed from a batch's numbers belongs to the pass
        return saved_bytes(lambda: self.loss(next(drawn)), exist=two[1])


def step_seconds(trainings: Mapping[str, Training], steps: int, each: Callable[[], None]) -> dict[str, float]:
    """Median time of a step of each of several trainings, which take turns so that all see the same machine.

    Args:
        steps: of each, after one that is not counted.
        each: called after each step.
    """
    found: dict[str, list[float]] = {name: [] for name in trainings}
    drawn = {name: training.endless() for name, training in trainings.items()}
    for training in trainings.values():
        training.model.train()
    for i in range(steps + 1):
        for name, training in trainings.items():
            batch = next(drawn[name])
            start = time.perf_counter()
            training.step(batch)
            if i > 0:
                found[name].append(time.perf_counter() - start)
            each()
    return {name: statistics.median(values) for name, values in found.items()}
