"""How the feature axes of two operands broadcast: padded with 1 on the left, as in DGL.

Everything here also works on symbolic sizes. A size counts as 1 only when it is a plain integer, so that a graph
captured with symbolic sizes is never tied to the sizes of its example.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt, Tensor

Size = int | SymInt

COPY = ("copy_lhs", "copy_rhs")


def is_one(size: Size) -> bool:
    """Whether an axis is known to have size 1."""
    return isinstance(size, int) and size == 1


def pad_left(features: Sequence[Size], rank: int) -> list[Size]:
    """``features`` with 1s before it until it has ``rank`` axes."""
    return [1] * (rank - len(features)) + list(features)


def pad_features(x: Tensor, rank: int) -> Tensor:
    """View ``[N, *F]`` with ``rank`` feature axes."""
    if x.dim() == rank + 1:
        return x
    return x.reshape([x.shape[0], *pad_left(x.shape[1:], rank)])


def out_features(op: str, lhs: Tensor | None, rhs: Tensor | None) -> list[Size]:
    """Feature axes of ``op(lhs, rhs)`` for one edge; ``dot`` keeps its summed axis as size 1."""
    if op == "copy_lhs":
        return list(lhs.shape[1:])
    if op == "copy_rhs":
        return list(rhs.shape[1:])
    rank = max(lhs.dim(), rhs.dim()) - 1
    left, right = pad_left(lhs.shape[1:], rank), pad_left(rhs.shape[1:], rank)
    features = [r if is_one(size) else size for size, r in zip(left, right, strict=True)]
    if op == "dot":
        features[-1] = 1
    return features


def reduce_features(grad: Tensor, features: Sequence[Size]) -> Tensor:
    """Sum the feature axes of ``grad`` along which ``features`` was broadcast: the result is ``[N, *features]``."""
    wanted = pad_left(features, grad.dim() - 1)
    axes = [
        i
        for i, (have, want) in enumerate(zip(grad.shape[1:], wanted, strict=True), 1)
        if is_one(want) and not is_one(have)
    ]
    if axes:
        grad = grad.sum(axes, keepdim=True)
    if len(features) != grad.dim() - 1:
        grad = grad.reshape([grad.shape[0], *features])
    return grad


def num_trailing_ones(features: Sequence[Size]) -> int:
    """How many axes at the end of ``features`` are known to be 1."""
    count = 0
    for size in reversed(features):
        if not is_one(size):
            break
        count += 1
    return count
