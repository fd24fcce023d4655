"""Tolokers, a graph of crowd workers, of Platonov et al., "A critical look at ... heterophily" (ICLR 2023)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from examples.datasets.node_data import NodeData, undirected


def tolokers(root: Path, split: int = 0) -> NodeData:
    """Read ``root/HeterophilousGraphDataset/tolokers/raw/tolokers.npz``.

    An edge joins workers of one task; the label says whether a worker was banned. Two classes of unequal size, so the
    metric is the area under the ROC curve, as in the paper.

    Args:
        split: which of the ten public splits, 0 to 9.

    Raises:
        FileNotFoundError: the file is missing; the message names it.
    """
    with np.load(root / "HeterophilousGraphDataset" / "tolokers" / "raw" / "tolokers.npz", allow_pickle=False) as file:
        features, labels = torch.from_numpy(file["node_features"]), torch.from_numpy(file["node_labels"]).long()
        source, target = torch.from_numpy(file["edges"]).long().unbind(1)
        train, val, test = (torch.from_numpy(file[f"{part}_masks"][split]) for part in ("train", "val", "test"))
    return NodeData(
        name="Tolokers",
        graph=undirected(source, target, len(labels)),
        features=features,
        labels=labels,
        classes=2,
        train=train,
        val=val,
        test=test,
        metric="roc_auc",
    )
