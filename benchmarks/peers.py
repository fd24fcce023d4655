"""What competes in the step benchmark: the same network, data and optimizer, run in different ways."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from benchmarks import sparse_net
from benchmarks.models import dgl_net, prepared, pyg_edges, pyg_net
from benchmarks.sparse_net import SparseNet
from examples.datasets import NodeData

EAGER, INT8, PYG_INT8 = "DGL fp32", "gqc int8", "PyG + gqc int8"
REMEMBERING = "gqc int8, inputs remembered"
WITH_LOSS, REMEMBERING_WITH_LOSS = f"{INT8}, loss in the model", f"{REMEMBERING}, loss in the model"


class Phases(NamedTuple):
    """Seconds of the parts of a training step; the loss belongs to the forward."""

    forward: float
    backward: float
    optimizer: float


Step = Callable[[], Phases]


@dataclass(frozen=True)
class Setting:
    """One benchmark.

    Attributes:
        name: a key of :data:`benchmarks.models.ARCHITECTURES`.
        data: a graph as the data set has it.
        hidden, layers: of the network.
        dropout: probability between layers. Without (0), torch's drawing of masks, which can outweigh all the rest of a
            step, plays no part.
    """

    name: str
    data: NodeData
    hidden: int = 128
    layers: int = 3
    dropout: float = 0.5


def contestants(setting: Setting) -> dict[str, Callable[[], Step]]:
    """What makes the training step of each contestant; :data:`EAGER` is the base."""
    torch.manual_seed(0)
    data = prepared(setting.name, setting.data)
    arguments = (setting.name, data, setting.hidden, setting.layers, setting.dropout)
    net = dgl_net(*arguments)

    def dgl_step(make: Callable[[nn.Module], nn.Module], context: Context = nullcontext, **dtype: Any) -> Step:
        return training_step(make(copy.deepcopy(net)), data.graph, data, context, **dtype)

    found: dict[str, Callable[[], Step]] = {
        EAGER: lambda: dgl_step(lambda m: m),
        INT8: lambda: dgl_step(gqc.compile),
        REMEMBERING: lambda: dgl_step(lambda m: gqc.compile(m, remember_inputs=True)),
        WITH_LOSS: lambda: loss_step(copy.deepcopy(net), data),
        REMEMBERING_WITH_LOSS: lambda: loss_step(copy.deepcopy(net), data, remember_inputs=True),
        "gqc bits=32": lambda: dgl_step(lambda m: gqc.compile(m, bits=32)),
        "gqc bf16": lambda: dgl_step(lambda m: gqc.compile(m.bfloat16(), bits=32), dtype=torch.bfloat16),
        "DGL bf16": lambda: dgl_step(lambda m: m.bfloat16(), dtype=torch.bfloat16),
        "DGL bf16 autocast": lambda: dgl_step(lambda m: m, _autocast),
    }
    if setting.name in sparse_net.ARCHITECTURES:
        found["torch.sparse"] = lambda: dgl_step(lambda m: SparseNet(m, data.graph))
    if importlib.util.find_spec("torch_geometric"):

        def pyg_step(make: Callable[[nn.Module], nn.Module], context: Context = nullcontext) -> Step:
            return training_step(make(pyg_net(*arguments)), pyg_edges(setting.name, data), data, context)

        found |= {
            "PyG fp32": lambda: pyg_step(lambda m: m),
            "PyG bf16 autocast": lambda: pyg_step(lambda m: m, _autocast),
            "PyG + torch.compile": lambda: pyg_step(torch.compile),
            PYG_INT8: lambda: pyg_step(gqc.compile),
        }
    return found


Context = Callable[[], AbstractContextManager[Any]]


def training_step(
    model: nn.Module,
    graph: object,
    data: NodeData,
    context: Context = nullcontext,
    dtype: torch.dtype = torch.float32,
) -> Step:
    """One full step of full-graph training: forward, loss, backward and Adam.

    Args:
        model: called with ``graph`` and the features.
        context: entered for the forward and the loss.
        dtype: of the features.
    """
    features, train = data.features.to(dtype), data.train
    labels = data.labels[train]

    def loss() -> Tensor:
        with context():
            return _loss(model(graph, features)[train], labels)

    return _step_of(model, loss)


class _Task(nn.Module):
    """A network and its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, graph: object, features: Tensor, labels: Tensor, train: Tensor) -> Tensor:
        return _loss(self.net(graph, features)[train], labels)


def loss_step(net: nn.Module, data: NodeData, **options: Any) -> Step:
    """As :func:`training_step`, of a network that is compiled together with its loss.

    Args:
        options: of :func:`gqc.compile`.
    """
    task, labels = gqc.compile(_Task(net), **options), data.labels[data.train]
    return _step_of(task, lambda: task(data.graph, data.features, labels, data.train))


def _step_of(model: nn.Module, compute_loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()

    def step() -> Phases:
        times = [time.perf_counter()]
        optimizer.zero_grad()
        loss = compute_loss()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        loss.item()
        times.append(time.perf_counter())
        return Phases(*(end - start for start, end in itertools.pairwise(times)))

    return step


def _loss(out: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(out.float(), labels)


def _autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def first_call(run: Callable[[], object]) -> float:
    """Seconds of a contestant's first step, which captures and compiles."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
