"""Node classification data: public files from a folder, or a graph that is generated."""

from __future__ import annotations

from pathlib import Path

from examples.datasets.amazon import photo
from examples.datasets.blocks import blocks
from examples.datasets.heterophilous import tolokers
from examples.datasets.node_data import NodeData
from examples.datasets.planetoid import PLANETOID, planetoid

DATASETS = ("blocks", *PLANETOID, "photo", "tolokers")
FOLDERS = {name: f"Planetoid/{folder}/raw" for name, folder in PLANETOID.items()}
FOLDERS |= {"photo": "Amazon/Photo/raw", "tolokers": "HeterophilousGraphDataset/tolokers/raw"}

__all__ = ["DATASETS", "PLANETOID", "NodeData", "blocks", "load", "photo", "planetoid", "tolokers"]


def load(name: str, root: Path | None = None, nodes: int = 20_000, seed: int = 0) -> NodeData:
    """Load a data set by name.

    Args:
        name: one of :data:`DATASETS`; ``"blocks"`` is generated.
        root: folder that holds the files; every other set needs it.
        nodes, seed: size and random seed of the generated graph.

    Raises:
        ValueError: a set of files is asked for without ``root``, or the name is unknown.
    """
    if name == "blocks":
        return blocks(nodes, seed=seed)
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}; there are {', '.join(DATASETS)}")
    if root is None:
        raise ValueError(f"{name} is read from files: pass --data-root DIR, where DIR/{FOLDERS[name]} is")
    if name in PLANETOID:
        return planetoid(name, root)
    return photo(root) if name == "photo" else tolokers(root)
