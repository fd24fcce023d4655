"""Interactions with a knowledge graph: Last.FM from files, or a generated set of the law of Amazon-book."""

from __future__ import annotations

from pathlib import Path

from examples.recommendation.datasets.interactions import RecommendationData
from examples.recommendation.datasets.lastfm import FOLDER, lastfm
from examples.recommendation.datasets.latent import amazon_book

DATASETS = ("lastfm", "amazon-book")

__all__ = ["DATASETS", "RecommendationData", "amazon_book", "lastfm", "load"]


def load(name: str, root: Path | None = None, scale: float = 1.0, seed: int = 0) -> RecommendationData:
    """Load a data set by name.

    Args:
        name: one of :data:`DATASETS`; ``"amazon-book"`` is generated.
        root: folder that holds the files of ``"lastfm"``.
        scale, seed: of the generated set.

    Raises:
        ValueError: files are asked for without ``root``, or the name is unknown.
        FileNotFoundError: a file is missing; the message names it.
    """
    if name == "amazon-book":
        return amazon_book(scale, seed)
    if name not in DATASETS:
        raise ValueError(f"no data set {name!r}; there are {', '.join(DATASETS)}")
    if root is None:
        raise ValueError(f"{name} is read from files: pass --data-root DIR, where DIR/{FOLDER} is")
    return lastfm(root)
