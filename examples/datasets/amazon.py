"""Amazon Photo, a co-purchase graph, in the file of Shchur et al., "Pitfalls of GNN evaluation" (2018)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from examples.datasets.node_data import NodeData, undirected

TRAIN_NODES, VALIDATION_NODES = 20, 30  # a class


def photo(root: Path, split_seed: int = 0) -> NodeData:
    """Read ``root/Amazon/Photo/raw/amazon_electronics_photo.npz``.

    Features are 1 for each word that the reviews of a product hold. There is no public split; as in the paper,
    20 nodes a class train and 30 a class validate, drawn with ``split_seed``, and all others test.

    Raises:
        FileNotFoundError: the file is missing; the message names it.
    """
    with np.load(root / "Amazon" / "Photo" / "raw" / "amazon_electronics_photo.npz", allow_pickle=False) as file:
        nodes, width = file["attr_shape"].tolist()
        features = torch.zeros(nodes, width)
        rows, columns = _places(file["attr_indptr"], file["attr_indices"])
        features[rows, columns] = (torch.from_numpy(file["attr_data"]) > 0).float()
        source, target = _places(file["adj_indptr"], file["adj_indices"])
        labels = torch.from_numpy(file["labels"]).long()
    train, val = _split(labels, split_seed)
    return NodeData(
        name="Photo",
        graph=undirected(source, target, nodes),
        features=features,
        labels=labels,
        classes=int(labels.max()) + 1,
        train=train,
        val=val,
        test=~(train | val),
    )


def _places(indptr: np.ndarray, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Row and column of each entry of a CSR matrix."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return torch.from_numpy(rows), torch.from_numpy(indices.astype(np.int64))


def _split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, val = (torch.zeros(len(labels), dtype=torch.bool) for _ in range(2))
    for label in range(int(labels.max()) + 1):
        members = order[labels[order] == label]
        train[members[:TRAIN_NODES]] = True
        val[members[TRAIN_NODES : TRAIN_NODES + VALIDATION_NODES]] = True
    return train, val
