"""Node classification data: Planetoid's files from a folder, or a graph that is generated."""

from __future__ import annotations

from pathlib import Path

from examples.datasets.blocks import blocks
from examples.datasets.node_data import NodeData
from examples.datasets.planetoid import PLANETOID, planetoid

DATASETS = ("blocks", *PLANETOID)

__all__ = ["DATASETS", "PLANETOID", "NodeData", "blocks", "load", "planetoid"]


def load(name: str, root: Path | None = None, nodes: int = 20_000, seed: int = 0) -> NodeData:
    """Load a data set by name.

    Args:
        name: ``"blocks"`` (generated) or one of :data:`PLANETOID`.
        root: folder that holds ``Planetoid/<Name>/raw``; only the Planetoid sets need it.
        nodes, seed: size and random seed of the generated graph.

    Raises:
        ValueError: a Planetoid set is asked for without ``root``, or the name is unknown.
    """
    if name == "blocks":
        return blocks(nodes, seed=seed)
    if name not in PLANETOID:
        raise ValueError(f"no data set {name!r}; there are {', '.join(DATASETS)}")
    if root is None:
        raise ValueError(
            f"{name} is read from files: pass --data-root DIR, where DIR/Planetoid/{PLANETOID[name]}/raw is"
        )
    return planetoid(name, root)
