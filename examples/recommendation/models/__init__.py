"""Plain PyTorch models: nothing here knows about gqc."""

from __future__ import annotations

from collections.abc import Callable

from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models.kgat import KGAT
from examples.recommendation.models.kgcn import KGCN
from examples.recommendation.models.kgin import KGIN
from examples.recommendation.models.kgnn_ls import KGNNLS
from examples.recommendation.models.recommender import Recommender

MODELS: dict[str, Callable[[RecommendationData], Recommender]] = {
    "kgat": KGAT,
    "kgcn": KGCN,
    "kgnn-ls": KGNNLS,
    "kgin": KGIN,
}
NAMES = {"kgat": "KGAT", "kgcn": "KGCN", "kgnn-ls": "KGNN-LS", "kgin": "KGIN"}

__all__ = ["KGAT", "KGCN", "KGIN", "KGNNLS", "MODELS", "NAMES", "Recommender"]
