"""How right predictions are: a number from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of the rows of ``logits`` [N, C] whose largest entry stands at the label."""
    return (logits.argmax(1) == labels).float().mean().item()


def roc_auc(logits: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of two classes: the chance that a node of class 1 scores above one of class 0.

    The score is ``logits[:, 1] - logits[:, 0]``; ties count half (Mann and Whitney's U by average ranks). NaN if one
    class is empty.
    """
    scores = logits[:, 1] - logits[:, 0]
    _, place, count = scores.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1) / 2)[place].double()
    positive = int(labels.sum())
    pairs = positive * (len(labels) - positive)
    below = rank[labels == 1].sum().item() - positive * (positive + 1) / 2
    return below / pairs if pairs else float("nan")


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": accuracy, "roc_auc": roc_auc}
