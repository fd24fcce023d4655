"""A generated graph with the traits of a citation or co-purchase network: hubs, classes, noisy features."""

from __future__ import annotations

import numpy as np
import torch

from examples.datasets.node_data import NodeData, undirected


def blocks(
    nodes: int,
    *,
    classes: int = 16,
    mean_degree: float = 14.0,
    exponent: float = 2.3,
    homophily: float = 0.65,
    width: int = 128,
    noise: float = 1.0,
    seed: int = 0,
) -> NodeData:
    """Degree-corrected stochastic block model (Karrer and Newman 2011) with Gaussian class features.

    Expected degrees follow the power law p(d) ~ d^-exponent, cut off at a tenth of the nodes. An edge joins two nodes
    of one class with probability ``homophily``, else two nodes of any class; its ends are drawn in proportion to
    their expected degree. Features are x = mu[class] + noise * N(0, 1) with |mu| = 1: too noisy to tell the classes
    apart without the neighbours. Half of the nodes train, a quarter each validates and tests.

    Args:
        nodes: N; the graph has about ``N * mean_degree`` directed edges (fewer where duplicates are dropped).
        width: F, the number of features.
        seed: same seed, same data.
    """
    if nodes < classes:
        raise ValueError(f"{nodes} nodes cannot hold {classes} classes")
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, nodes, p=rng.dirichlet(np.full(classes, 4.0)))
    weights = (1.0 - rng.random(nodes)) ** (-1.0 / (exponent - 1.0))
    weights = np.minimum(weights, weights.mean() * nodes / 10 / mean_degree)

    # Nodes of a class stand together in `order`, so one class is one interval of the cumulated weights.
    order = np.argsort(labels, kind="stable")
    cumulated = np.concatenate([[0.0], np.cumsum(weights[order])])
    bounds = cumulated[np.searchsorted(labels[order], np.arange(classes + 1))]

    def draw(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        place = low + rng.random(len(low)) * (high - low)
        return order[np.searchsorted(cumulated, place, side="right").clip(1, nodes) - 1]

    edges = int(nodes * mean_degree / 2)
    everything = np.zeros(edges), np.full(edges, cumulated[-1])
    source = draw(*everything)
    inside = rng.random(edges) < homophily
    target = draw(
        np.where(inside, bounds[labels[source]], everything[0]),
        np.where(inside, bounds[labels[source] + 1], everything[1]),
    )

    means = rng.standard_normal((classes, width))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    features = means[labels] + noise * rng.standard_normal((nodes, width))

    part = torch.from_numpy(rng.permutation(nodes))
    return NodeData(
        name="Blocks",
        graph=undirected(torch.from_numpy(source), torch.from_numpy(target), nodes),
        features=torch.from_numpy(features.astype(np.float32)),
        labels=torch.from_numpy(labels),
        classes=classes,
        train=part < nodes // 2,
        val=(part >= nodes // 2) & (part < nodes * 3 // 4),
        test=part >= nodes * 3 // 4,
    )
