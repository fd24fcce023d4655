"""Time and peak memory of whole training steps beside PyG: eager, compiled by torch, on cuSPARSE and in bf16."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import gqc
from gqc.cuda_graph.stage import WARM_UPS
from tools.gpu_check.graphs import Law, Task, draw, laws
from tools.gpu_check.models import MODELS, net, sparse_adjacency, training_step
from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

_OURS = "gqc int8"
_REPLAYED = "gqc int8, CUDA graphs"
_COMPILED_LAWS = ("arxiv",)  # torch.compile takes half a minute a model


def whole_steps(place: Place, until: float, law: str) -> Found:
    """A row for each model and contestant on a graph of one of :func:`laws`; the speed-up is gqc int8's over it."""
    found, rounds = Found(), 1 if place.dry else 10
    size = laws(place.dry)[law]
    policy = {"min_size": 0} if place.dry else {}
    task = draw(size, place.device)
    with place.running():
        for name in MODELS[:1] if place.dry else MODELS:
            if time.monotonic() > until:
                found.missing.append(f"{name} on {law}: no time")
                continue
            torch.manual_seed(0)
            model = attempt(found, name, lambda n=name: net(n, size).to(place.device))
            if model is None:
                continue
            makers: dict[str, Callable[[], Callable[[], Tensor]]] = {
                _OURS: lambda m=model: training_step(gqc.compile(copy.deepcopy(m), **policy), task),
                "gqc bits=32": lambda m=model: training_step(gqc.compile(copy.deepcopy(m), bits=32), task),
                "PyG fp32": lambda m=model: training_step(copy.deepcopy(m), task),
                "PyG bf16 autocast": lambda m=model: training_step(copy.deepcopy(m), task, autocast=True),
            }
            if not place.dry:
                makers[_REPLAYED] = lambda m=model: training_step(gqc.compile(copy.deepcopy(m), cuda_graph=True), task)
            if name != "gat":
                makers["PyG cuSPARSE fp32"] = lambda n=name, m=model: _on_cusparse(place, n, size, m, task)
            if law in _COMPILED_LAWS and not place.dry:
                makers["PyG torch.compile"] = lambda m=model: training_step(torch.compile(copy.deepcopy(m)), task)
            _compare(place, until, rounds, f"{name} on {law}", makers, found)
    return found


def _on_cusparse(place: Place, name: str, size: Law, model: nn.Module, task: Task) -> Callable[[], Tensor]:
    sparse = net(name, size, normalized=True).to(place.device)
    sparse.load_state_dict(model.state_dict())
    return training_step(sparse, task, sparse_adjacency(name, task))


def _compare(
    place: Place,
    until: float,
    rounds: int,
    title: str,
    makers: dict[str, Callable[[], Callable[[], Tensor]]],
    found: Found,
) -> None:
    steps, peaks, losses = {}, {}, {}
    for contestant, make in makers.items():
        try:
            step = make()
            losses[contestant] = float(step())  # fills what the model caches
            for _ in range(WARM_UPS + 2 if contestant == _REPLAYED else 1):
                step()  # compiled and recorded at the latest now
            peaks[contestant] = place.peak_bytes(step)
        except torch.cuda.OutOfMemoryError:
            found.rows.append({"step": title, "contestant": contestant, "ms": "out of memory"})
        except Exception as error:
            if contestant.startswith("gqc"):
                attempt(found, f"{title}, {contestant}", lambda error=error: _raise(error))
            else:  # a peer that cannot run the model is no fault of gqc
                found.rows.append({"step": title, "contestant": contestant, "ms": f"cannot: {type(error).__name__}"})
        else:
            steps[contestant] = step
        if not place.dry:
            torch.cuda.empty_cache()
    timings = place.paired(steps, rounds, until) if steps else {}
    for contestant, timing in timings.items():
        row: dict[str, object] = {"step": title, "contestant": contestant, "ms": round(1e3 * timing.median, 3)}
        if _OURS in timings:
            row["gqc int8 is faster by"] = f"{timings[_OURS].speedup_over(timing):.2f}"
        row["peak MiB"] = round(peaks[contestant] / 2**20, 1)
        row["first loss"] = round(losses[contestant], 4)
        found.rows.append(row)


def _raise(error: Exception) -> None:
    raise error
