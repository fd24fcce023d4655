"""Whole training steps of compiled models on the device beside the CPU, and chains replayed as CUDA graphs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor

import gqc
from gqc.cuda_graph import stage
from gqc.variant import CompiledStage
from tools.gpu_check.graphs import Law, Task, draw, laws
from tools.gpu_check.models import MODELS, net, training_step
from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

_LAW = Law(3000, 40_000, 64, 7, 1000, exponent=2.3)
_STEPS = 3

# Of the loss. Sums of floats have another order there, and a value that this moves over a bound is rounded to the
# other side, by one in 127 of its tensor.
_TOLERANCES = {32: 1e-4, 8: 1e-2}


def steps(place: Place, until: float) -> Found:
    """Train each model for a few steps, quantized and not, on the device and on the CPU with the same seed."""
    found = Found()
    law = _law(place)
    task = draw(law, torch.device("cpu"))
    for name in MODELS:
        for bits, tolerance in _TOLERANCES.items():
            if time.monotonic() > until:
                found.missing.append(f"{name} at {bits} bits: no time")
                continue
            row = attempt(found, f"{name} at {bits} bits", lambda n=name, b=bits: _losses(place, law, task, n, b))
            if row is None:
                continue
            found.rows.append(row)
            if not row["off by"] <= tolerance:
                found.problems.append(f"{name} at {bits} bits: losses are off by {row['off by']:.2g}, > {tolerance}")
    return found


def _law(place: Place) -> Law:
    return laws(dry=True)["tiny"] if place.dry else _LAW


def _losses(place: Place, law: Law, task: Task, name: str, bits: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = net(name, law)
    losses = []
    steps = 2 if place.dry else _STEPS  # the second sees what the first one's gradients have changed
    for on_device in (False, True):
        compiled = gqc.compile(copy.deepcopy(model), bits=bits, seed=11, min_size=0)
        if on_device:
            with place.running(poisoned=True):
                step = training_step(compiled.to(place.device), task.to(place.device))
                losses.append([step().item() for _ in range(steps)])
        else:
            step = training_step(compiled, task)
            losses.append([step().item() for _ in range(steps)])
    off = max(abs(a - b) / abs(b) for a, b in zip(*reversed(losses), strict=True))
    return {"model": name, "bits": bits, "CPU loss": losses[0][-1], "device loss": losses[1][-1], "off by": off}


def replay(place: Place, until: float) -> Found:
    """Capture chains of ops in a CUDA graph, replay them on other values and compare with the same calls; train models
    with ``cuda_graph=True`` and without.
    """
    found, law = Found(), _law(place)
    task = draw(law, torch.device("cpu")).to(place.device)
    chains = {"quantize, GEMM, SPMM, SDDMM, softmax, GAT": _int8_chain(task), "compiled GCN": None}
    with place.running():
        for name, chain in chains.items():
            attempt(found, name, lambda chain=chain: _replay(place, chain or _compiled(place, task), task.x))
    with place.running(), place.recording():
        for name in MODELS[:1] if place.dry else MODELS:
            if time.monotonic() > until:
                found.missing.append(f"steps of {name}: no time")
                continue
            attempt(found, f"steps of {name}", lambda n=name: _replayed_steps(place, law, task, n, found))
    return found


def _replayed_steps(place: Place, law: Law, task: Task, name: str, found: Found) -> None:
    torch.manual_seed(0)
    model = net(name, law).to(place.device)
    losses = []
    for cuda_graph in (False, True):
        compiled = gqc.compile(copy.deepcopy(model), seed=11, min_size=0, cuda_graph=cuda_graph)
        step = training_step(compiled, task)
        losses.append([step().item() for _ in range(stage.WARM_UPS + 4)])  # a GCN fills a cache in its first call
    parts = [part for variants in gqc.state_of(compiled).variants.values() for v in variants for part in v.steps]
    (usage,) = (part.graphed.usage for part in parts if isinstance(part, CompiledStage) and part.graphed is not None)
    off = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
    row = {"model": name, "loss": losses[0][-1], "replayed loss": losses[1][-1], "off by": off}
    found.rows.append({**row, "forwards": usage.forwards, "backwards": usage.backwards})
    if not off <= _TOLERANCES[8]:
        found.problems.append(f"steps of {name}: losses are off by {off:.2g} when replayed")
    if not (usage.forwards and usage.backwards):
        found.problems.append(f"steps of {name}: nothing was replayed: {'; '.join(usage.lines())}")
    with place.waiting_refused():
        attempt(found, f"steps of {name} that may not wait for the device", step)


def _int8_chain(task: Task) -> Callable[[Tensor], Tensor]:
    ops, g, float32 = torch.ops.gqc, task.g, torch.float32
    seed = torch.tensor([5, 0], device=task.x.device)
    weight = torch.randn(task.x.shape[1], 32, device=task.x.device)

    def chain(x: Tensor) -> Tensor:
        q = ops.quantize(x, None, seed, 0, 8, True)
        w = ops.quantize(weight, None, seed, 1, 8, True)
        hidden, absmax = ops.qgemm(*q, *w, False, False, None, float32)
        h = ops.quantize(hidden, absmax, seed, 2, 8, True)
        logits = ops.qsddmm(g, "dot", *h, *h, "u", "v", float32)
        alpha = ops.edge_softmax(g, logits)
        out = ops.qspmm(g, "mul", *h, alpha, None, float32)[0]
        heads, ends = h[0].view(-1, 4, 8), hidden.view(-1, 4, 8).sum(-1)
        attended = ops.gat(g, ends, ends, heads, h[1], 0.2, 0.5, seed, 3, float32)[0]
        return out + attended.flatten(1)

    return chain


def _compiled(place: Place, task: Task) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    features, classes = task.x.shape[1], int(task.y.max()) + 1
    law = Law(len(task.x), task.edge_index.shape[1], features, classes, 0)
    model = gqc.compile(net("gcn", law), min_size=0, rounding="nearest").to(place.device).eval()

    @torch.no_grad()
    def chain(x: Tensor) -> Tensor:
        return model(x, task.edge_index)

    return chain


def _replay(place: Place, chain: Callable[[Tensor], Tensor], x: Tensor) -> None:
    inputs, other = x.clone(), x.flip(0).contiguous()
    chain(inputs)  # fills what the model caches
    want = chain(other).clone()
    if place.dry:
        inputs.copy_(other)
        again = chain(inputs)
    else:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                chain(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = chain(inputs)
        inputs.copy_(other)
        again.zero_()
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(again, want, rtol=0, atol=0, equal_nan=True)
