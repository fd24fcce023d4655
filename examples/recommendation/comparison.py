"""The same model trained in full precision and with compressed activations, from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import gqc
from examples.recommendation.datasets import RecommendationData
from examples.recommendation.models import MODELS
from examples.recommendation.training import Training, step_seconds

EAGER, EXACT = "FP32 PyTorch", "FP32 gqc"
TIMED_STEPS = 20

Variants = dict[str, Callable[[nn.Module], nn.Module]]


def name_of(bits: int, rounding: str) -> str:
    """What tables call a width."""
    return f"INT{bits}" if rounding == "stochastic" else f"INT{bits} {rounding}"


def variants(widths: Iterable[int], roundings: Iterable[str]) -> Variants:
    """Plain PyTorch, compiled in full precision, and compiled with activations saved at each width below 32."""

    def compressed(bits: int, rounding: str) -> Callable[[nn.Module], nn.Module]:
        return lambda model: gqc.compile(model, bits=32, save_bits=gqc.SaveBits(bits, rounding=rounding))

    found: Variants = {EAGER: lambda model: model, EXACT: lambda model: gqc.compile(model, bits=32)}
    for bits in widths:
        if bits != 32:
            found |= {name_of(bits, rounding): compressed(bits, rounding) for rounding in roundings}
    return found


def compare(
    model: str,
    data: RecommendationData,
    variants: Variants,
    seeds: int,
    epochs: int,
    each: Callable[[str, int], None],
    batch: int = 1024,
    width: int = 64,
    layers: int = 3,
) -> dict[str, dict[str, Any]]:
    """Train and measure every variant.

    Args:
        model: a key of :data:`MODELS`.
        seeds: seed 0, 1, ... sets initial weights, batches, negatives and dropout; it is the same for all variants.
        each: called with what is done next and its number of units (:func:`units`) after each.

    Returns:
        By variant: ``recall`` and ``ndcg`` of the last epoch, one a seed, ``saved_bytes``, and ``step_seconds``.
    """

    def fresh() -> Any:
        return MODELS[model](data, width, layers)

    trainings = {name: Training(fresh(), data, prepare, batch) for name, prepare in variants.items()}
    result: dict[str, dict[str, Any]] = {name: {"recall": [], "ndcg": []} for name in variants}
    for seed in range(seeds):
        torch.manual_seed(seed)
        weights = fresh().state_dict()
        for name, training in trainings.items():
            training.restart(weights, seed)
            for _ in range(epochs):
                training.epoch()
                each(f"{name}, seed {seed}", 1)
            found = training.evaluate()
            result[name]["recall"].append(found.recall)
            result[name]["ndcg"].append(found.ndcg)
            each(f"{name}, seed {seed}", 1)
    for name, training in trainings.items():
        result[name]["saved_bytes"] = training.saved_bytes()
    seconds = step_seconds(trainings, TIMED_STEPS, lambda: each("time of a step", 0))
    for name in variants:
        result[name]["step_seconds"] = seconds[name]
    return result


def units(variants: Variants, seeds: int, epochs: int) -> int:
    """How many epochs and evaluations :func:`compare` reports."""
    return len(variants) * seeds * (epochs + 1)
