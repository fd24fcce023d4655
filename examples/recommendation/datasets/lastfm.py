"""Last.FM (HetRec 2011) with the knowledge graph of Wang et al., KGCN (WWW 2019), in MCCLK's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.recommendation.datasets.interactions import RecommendationData

FOLDER = Path("KGRec") / "LastFM_music"


def lastfm(root: Path) -> RecommendationData:
    """Read ``root/KGRec/LastFM_music/ratings_final.txt`` and ``kg_final.txt``.

    Ratings are lines of user, item and label; those of label 1 are the interactions, the others negatives that the
    authors drew. Triples are lines of head, relation and tail.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: a file does not hold what it should.
    """
    ratings, triples = (_read(root / FOLDER / name) for name in ("ratings_final.txt", "kg_final.txt"))
    interactions = np.unique(ratings[ratings[:, 2] == 1, :2], axis=0)
    sizes = (ratings[:, 0].max() + 1, ratings[:, 1].max() + 1, triples[:, ::2].max() + 1, triples[:, 1].max() + 1)
    if sizes[1] > sizes[2]:
        raise ValueError(
            f"{root / FOLDER}: item {sizes[1] - 1} is no entity of kg_final.txt, which ends at {sizes[2] - 1}"
        )
    return RecommendationData.split("LastFM", interactions, np.unique(triples, axis=0), tuple(map(int, sizes)))


def _read(file: Path) -> np.ndarray:
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}: --data-root must be the folder that holds {FOLDER}")
    values = np.loadtxt(file, dtype=np.int64, ndmin=2)
    if values.shape[1] != 3 or len(values) == 0:
        raise ValueError(
            f"{file}: expected lines of three integers, found {values.shape[1]} columns in {len(values)} lines"
        )
    return values
