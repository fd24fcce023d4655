"""Graphs with the sizes and degree laws of public data sets, drawn on the device in a second."""

from __future__ import annotations

from dataclasses import dataclass, replace

import dgl
import torch
from torch import Tensor

from examples.datasets import NodeData
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

    def scaled(self, scale: float, of_edges: float = 1.0) -> Law:
        """The same law with ``scale`` times the nodes and ``scale * of_edges`` times the edges."""
        edges = max(2, round(self.edges * scale * of_edges))
        return replace(self, nodes=max(2, round(self.nodes * scale)), edges=edges)


LAWS = {
    "arxiv": Law(169_343, 2_315_598, 128, 40, 13_161, exponent=2.3),
    "reddit": Law(232_965, 114_615_892, 602, 41, 21_657, sigma=1.4),
    "products": Law(2_449_029, 123_718_280, 100, 47, 17_481, exponent=2.1),
}
"""By data set: ogbn-arxiv, Reddit and ogbn-products."""


def draw_ends(law: Law, device: torch.device, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Both ends of each edge, int32; edges join nodes in proportion to their expected degrees."""

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

    return ends(), ends()


def relation(law: Law, hub: int = 0, seed: int = 0) -> list[Tensor]:
    """The relation of a drawn graph, int32, in no order of edges; ``hub`` more edges go into its last node."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = draw_ends(law, torch.device("cpu"), generator)
    into_hub = torch.full((hub,), law.nodes - 1, dtype=dst.dtype)
    from_any = torch.randint(law.nodes, (hub,), generator=generator).to(src.dtype)
    return from_edges(torch.cat([src, from_any]), torch.cat([dst, into_hub]), law.nodes, law.nodes)


def _times(factor: float, what: str) -> str:
    return "" if factor == 1 else f" x {factor:g}{what}"


def node_data(name: str, scale: float = 1.0, of_edges: float = 1.0, seed: int = 0) -> NodeData:
    """A graph of one of :data:`LAWS` for DGL, each edge in both directions, with random features and labels.

    Training nodes are half of all. Nothing can be learnt from it: it is there to be timed.
    """
    law = LAWS[name].scaled(scale, of_edges)
    generator = torch.Generator().manual_seed(seed)
    half = replace(law, edges=law.edges // 2)
    src, dst = draw_ends(half, torch.device("cpu"), generator)
    graph = dgl.graph((torch.cat([src, dst]), torch.cat([dst, src])), num_nodes=law.nodes, idtype=torch.int32)
    features = torch.randn(law.nodes, law.features, generator=generator)
    labels = torch.randint(law.classes, (law.nodes,), generator=generator)
    part = torch.rand(law.nodes, generator=generator)
    return NodeData(
        f"law of {name}{_times(scale, '')}{_times(of_edges, ' edges')}",
        *(graph, features, labels, law.classes),
        *(part < 0.5, (part >= 0.5) & (part < 0.75), part >= 0.75),
    )
