"""Full-graph training with the test accuracy (or what the data is measured by) of the best validation epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from examples.datasets import NodeData
from examples.metrics import METRICS


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave: seconds of the training step (forward, backward, update), loss and accuracies."""

    seconds: float
    loss: float
    val: float
    test: float


def step(model: nn.Module, optimizer: torch.optim.Optimizer, data: NodeData) -> float:
    """One training step; returns the loss."""
    model.train()
    optimizer.zero_grad()
    out = model(data.graph, data.features)
    loss = F.cross_entropy(out[data.train], data.labels[data.train])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracies(model: nn.Module, data: NodeData) -> tuple[float, float]:
    """The data's metric, by default the fraction of right predictions, on the validation and the test nodes."""
    model.eval()
    out, metric = model(data.graph, data.features), METRICS[data.metric]
    val, test = (metric(out[part], data.labels[part]) for part in (data.val, data.test))
    return val, test


def epochs(model: nn.Module, optimizer: torch.optim.Optimizer, data: NodeData, count: int) -> Iterator[Epoch]:
    """Train for ``count`` epochs and yield each as it ends."""
    for _ in range(count):
        start = time.perf_counter()
        loss = step(model, optimizer, data)
        seconds = time.perf_counter() - start
        val, test = accuracies(model, data)
        yield Epoch(seconds, loss, val, test)


def best(history: list[Epoch]) -> float:
    """Test accuracy at the first epoch with the best validation accuracy."""
    return max(history, key=lambda epoch: epoch.val).test
