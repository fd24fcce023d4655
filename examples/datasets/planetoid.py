"""Cora, CiteSeer and PubMed in the raw files of Yang et al., "Revisiting semi-supervised learning" (ICML 2016)."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch

from examples.datasets.node_data import NodeData, undirected

PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
VALIDATION_NODES = 500


def planetoid(name: str, root: Path) -> NodeData:
    """Read ``root/Planetoid/<Name>/raw/ind.<name>.*`` with its public split and row-normalised features.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
    """
    raw = root / "Planetoid" / PLANETOID[name] / "raw"
    x, y, tx, ty, allx, ally, neighbours = (
        _unpickle(raw / f"ind.{name}.{part}") for part in ("x", "y", "tx", "ty", "allx", "ally", "graph")
    )
    test = np.loadtxt(raw / f"ind.{name}.test.index", dtype=np.int64)

    # Row i of tx belongs to node test[i]. CiteSeer's test range has gaps: isolated nodes without features or label.
    nodes = int(test.max()) + 1
    features = scipy.sparse.lil_matrix((nodes, x.shape[1]), dtype=np.float32)
    onehot = np.zeros((nodes, y.shape[1]), dtype=np.int64)
    features[: allx.shape[0]], onehot[: allx.shape[0]] = allx, ally
    features[test], onehot[test] = tx, ty

    degrees = [len(neighbours[node]) for node in range(nodes)]
    source = np.repeat(np.arange(nodes), degrees)
    target = np.concatenate([neighbours[node] for node in range(nodes)]).astype(np.int64)

    train = y.shape[0]
    order = torch.arange(nodes)
    return NodeData(
        name=PLANETOID[name],
        graph=undirected(torch.from_numpy(source), torch.from_numpy(target), nodes),
        features=torch.from_numpy(_row_normalised(features)),
        labels=torch.from_numpy(onehot.argmax(1)),
        classes=y.shape[1],
        train=order < train,
        val=(order >= train) & (order < train + VALIDATION_NODES),
        test=torch.zeros(nodes, dtype=torch.bool).index_fill(0, torch.from_numpy(test), True),
    )


# What the pickled files ask for, by its name; the modules have moved since they were written.
_BUILDS = {
    "_reconstruct": np.empty(0).__reduce__()[0],
    "csr_matrix": scipy.sparse.csr_matrix,
    "defaultdict": defaultdict,
    "dtype": np.dtype,
    "list": list,
    "ndarray": np.ndarray,
}


class _Unpickler(pickle.Unpickler):
    """Builds arrays, CSR matrices and dictionaries of lists, and no more."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _BUILDS:
            raise pickle.UnpicklingError(f"not a Planetoid file: it asks for {module}.{name}")
        return _BUILDS[name]


def _unpickle(path: Path) -> Any:
    with path.open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()  # written by Python 2


def _row_normalised(features: scipy.sparse.spmatrix) -> np.ndarray:
    dense = features.toarray()
    total = dense.sum(1, keepdims=True)
    return dense / np.where(total == 0, 1, total)
