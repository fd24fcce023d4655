"""What the models have in common: a loss of a batch to train with, and scores of all items to evaluate with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.recommendation.datasets import RecommendationData


class Recommender(nn.Module):
    """A model of users and items in a knowledge graph.

    ``model(graph, users, positives, negatives)`` is all of the loss of a batch, so that what a compiled model saves for
    the backward is all that training saves. ``graph`` is a named tuple of tensors from :meth:`graph_of`. The forward
    calls a method ``propagate`` once a layer, with the arguments that the model needs.

    Attributes:
        decay: factor of the L2 norm of the batch's embeddings in the loss.
        alternated: a second model with a loss of triples, trained in turn with this one, or ``None``.
    """

    decay: ClassVar[float] = 1e-5

    def __init__(self) -> None:
        super().__init__()
        self.alternated: nn.Module | None = None

    @staticmethod
    def graph_of(data: RecommendationData) -> Any:
        """The graph that the model works on."""
        raise NotImplementedError

    def scorer(self, graph: Any) -> Callable[[Tensor], Tensor]:
        """A function from users [B] to the scores of all items [B, I], in evaluation mode and without gradients."""
        raise NotImplementedError

    def refresh(self, graph: Any) -> None:
        """Bring what is constant during an epoch up to date."""


class Sparse(NamedTuple):
    """Edges in the order of their destinations, a CSR matrix written out.

    Attributes:
        src, dst: [E] int64; messages go from ``src`` to ``dst``.
    """

    src: Tensor
    dst: Tensor


def aggregate(messages: Tensor, dst: Tensor, num: int) -> Tensor:
    """Sum messages [E, D] by their destinations, [num, D]."""
    return messages.new_zeros(num, messages.shape[1]).index_add(0, dst, messages)


def by_destination(src: Tensor, dst: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The same edges, and what belongs to them, sorted by destination."""
    order = torch.argsort(dst, stable=True)
    return tuple(x[order] for x in (src, dst, *others))


def bpr(users: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Bayesian personalised ranking (Rendle et al., UAI 2009) of rows that belong together, each [B, D]."""
    return F.softplus((users * (negatives - positives)).sum(1)).mean()


def half_square(*embeddings: Tensor) -> Tensor:
    """Half the squared L2 norm of embeddings [B, D], a row of the batch."""
    return sum(x.square().sum() for x in embeddings) / (2 * len(embeddings[0]))  # type: ignore[return-value]
