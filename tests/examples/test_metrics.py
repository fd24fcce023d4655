import math
from itertools import product

import pytest
import torch

from examples.metrics import accuracy, roc_auc


def test_accuracy() -> None:
    assert accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0])) == 0.75


@pytest.mark.parametrize("levels", [3, 1000])
def test_roc_auc_is_the_chance_of_the_right_order(levels: int) -> None:
    """With few levels most pairs are tied."""
    labels = torch.randint(0, 2, (60,))
    labels[:2] = torch.tensor([0, 1])
    logits = torch.randint(levels, (60, 2)).float()
    score = logits[:, 1] - logits[:, 0]
    pairs = list(product(score[labels == 1].tolist(), score[labels == 0].tolist()))
    want = sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)
    assert roc_auc(logits, labels) == pytest.approx(want)


def test_roc_auc_of_one_class_is_undefined() -> None:
    assert math.isnan(roc_auc(torch.rand(3, 2), torch.zeros(3, dtype=torch.int64)))
