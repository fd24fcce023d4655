"""The tasks that are timed: graphs by the laws of :mod:`benchmarks.graphs`, with their relation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.graphs import LAWS, Law, draw_ends
from gqc.runtime.relation import from_edges

_DRY = Law(60, 400, 16, 4, 100, exponent=2.3)


def laws(dry: bool) -> dict[str, Law]:
    """The laws to draw graphs from by name: three data sets' or, dry, a tiny one."""
    return {"tiny": _DRY} if dry else LAWS


@dataclass(frozen=True)
class Task:
    """A graph with features and labels.

    Attributes:
        edge_index: ``[2, E]`` int64, sorted by source as PyG's ``coalesce`` leaves it.
        g: the relation, int32.
        x: ``[N, F]`` float32 features.
        y: ``[N]`` labels.
    """

    edge_index: Tensor
    g: list[Tensor]
    x: Tensor
    y: Tensor

    def to(self, device: torch.device) -> Task:
        """The same on a device."""
        g = [tensor.to(device) for tensor in self.g]
        return Task(self.edge_index.to(device), g, self.x.to(device), self.y.to(device))


def draw(law: Law, device: torch.device, seed: int = 0) -> Task:
    """The same task for the same law, seed and device."""
    generator = torch.Generator(device).manual_seed(seed)
    src, dst = draw_ends(law, device, generator)
    src = src.sort()[0]
    g = from_edges(src, dst, law.nodes, law.nodes)
    x = torch.randn(law.nodes, law.features, generator=generator, device=device)
    y = torch.randint(law.classes, (law.nodes,), generator=generator, device=device)
    return Task(torch.stack([src, dst]).long(), g, x, y)
