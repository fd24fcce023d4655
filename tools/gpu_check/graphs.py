"""Graphs with the sizes and degree laws of public data sets, drawn on the device in a second."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gqc.runtime.relation import from_edges


@dataclass(frozen=True)
class Law:
    """A data set's size and degrees.

    Attributes:
        nodes, edges: edges are directed, both directions of an undirected one count.
        features, classes: of the task.
        max_degree: where expected degrees are cut off.
        exponent: degrees follow p(d) ~ d^-exponent; ``None``: lognormal with sigma ``sigma``.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    max_degree: int
    exponent: float | None = None
    sigma: float = 0.0


_LAWS = {
    "arxiv": Law(169_343, 2_315_598, 128, 40, 13_161, exponent=2.3),
    "reddit": Law(232_965, 114_615_892, 602, 41, 21_657, sigma=1.4),
    "products": Law(2_449_029, 123_718_280, 100, 47, 17_481, exponent=2.1),
}
_DRY = Law(60, 400, 16, 4, 100, exponent=2.3)


def laws(dry: bool) -> dict[str, Law]:
    """The laws to draw graphs from by name: three data sets' or, dry, a tiny one."""
    return {"tiny": _DRY} if dry else _LAWS


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
    """A graph whose edges join nodes in proportion to their expected degrees, the same for the same seed and device."""
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(size: int) -> Tensor:
        return torch.rand(size, generator=generator, device=device, dtype=torch.float64)

    if law.exponent is None:
        weights = torch.randn(law.nodes, generator=generator, device=device, dtype=torch.float64).mul(law.sigma).exp()
    else:
        weights = (1 - uniform(law.nodes)) ** (-1 / (law.exponent - 1))
    weights = (weights * law.edges / law.nodes / weights.mean()).clamp_(max=law.max_degree)
    bounds = weights.cumsum(0)

    def ends() -> Tensor:
        place = torch.searchsorted(bounds, uniform(law.edges) * bounds[-1], out_int32=True)
        return place.clamp_(max=law.nodes - 1)

    src, dst = ends().sort()[0], ends()
    g = from_edges(src, dst, law.nodes, law.nodes)
    x = torch.randn(law.nodes, law.features, generator=generator, device=device)
    y = torch.randint(law.classes, (law.nodes,), generator=generator, device=device)
    return Task(torch.stack([src, dst]).long(), g, x, y)
