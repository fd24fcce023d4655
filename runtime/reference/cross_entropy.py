"""Cross entropy of rows of logits with labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(
    logits: Tensor, labels: Tensor, rows: Tensor | None, reduction: str, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """``log sum exp(x) - x[label]`` of each row x of ``logits[rows]``, 0 where the label is ``ignore_index``, ``[S]``
    or reduced; and the number of labels that are not ignored. The mean of none is NaN.
    """
    chosen = logits if rows is None else logits[rows]
    loss = F.nll_loss(chosen.float().log_softmax(1), labels, ignore_index=ignore_index, reduction=reduction)
    return loss, (labels != ignore_index).sum().float()


def cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    labels: Tensor,
    rows: Tensor | None,
    counted: Tensor,
    reduction: str,
    ignore_index: int,
    scattered: int | None = None,
) -> Tensor:
    """``softmax(x) - one_hot(label)`` times the gradient of the row's loss, added up by row of ``logits``."""
    gathered = logits if rows is None or scattered is not None else logits[rows]
    taken = labels != ignore_index
    probabilities = gathered.float().softmax(1)
    probabilities[taken, labels[taken]] -= 1
    factors = grad / counted if reduction == "mean" else grad
    gradient = torch.where(taken[:, None], probabilities * factors.float().reshape(-1, 1), 0.0)
    if rows is not None:
        count = logits.shape[0] if scattered is None else scattered
        gradient = gradient.new_zeros(count, gradient.shape[1]).index_add(0, rows % count if count else rows, gradient)
    return gradient.to(logits.dtype)
