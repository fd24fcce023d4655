"""What competes in the benchmarks: the same model, data and optimizer, run in different ways."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable

import torch
from torch import nn

import gqc
from examples.datasets import NodeData
from examples.models import Recipe
from examples.training import step

EAGER, INT8 = "DGL fp32", "gqc int8"

Step = Callable[[], float]


def training_steps(how: Recipe, data: NodeData, hidden: int | None, dropout: bool) -> dict[str, Step]:
    """One full training step (forward, loss, backward, optimizer) of each contestant; :data:`EAGER` is the base.

    Args:
        data: as :meth:`Recipe.prepare` gives it.
        hidden: width of the hidden layer, ``None`` for the recipe's.
        dropout: False trains without, since torch's drawing of masks can outweigh all the rest of a step.
    """
    model = how.model(data, hidden)
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    contestants: dict[str, nn.Module] = {
        EAGER: model,
        INT8: gqc.compile(copy.deepcopy(model)),
        "gqc bits=32": gqc.compile(copy.deepcopy(model), bits=32),
    }
    steps = {name: _step(how, module, data) for name, module in contestants.items()}
    steps["DGL bf16 autocast"] = _under_autocast(_step(how, copy.deepcopy(model), data))
    if importlib.util.find_spec("torch_geometric"):
        from benchmarks.pyg_models import pyg_peer

        steps["PyG fp32"] = _step(how, pyg_peer(model, data), data)
    return steps


def first_call(run: Step) -> float:
    """Seconds of a contestant's first step, which captures and compiles."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _step(how: Recipe, model: nn.Module, data: NodeData) -> Step:
    optimizer = how.optimizer(model)
    return lambda: step(model, optimizer, data)


def _under_autocast(run: Step) -> Step:
    def under_autocast() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            return run()

    return under_autocast
