"""``gqc.error_report``: what quantization does to every primitive of a model, measured on one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from gqc.compile import state_of
from gqc.given import check_call, check_loss
from gqc.joint import SEED, TANGENT, Placeholder
from gqc.node_error import GRADIENT, NodeError, node_errors
from gqc.seed import SeedSource
from gqc.text import printed, show
from gqc.trial import columns_put_back, differentiate, undone, variant_of
from gqc.variant import CompiledStage, IslandStep


@dataclass(frozen=True)
class ErrorReport:
    """Errors of the nodes of a model, worst first (NaN before all).

    Attributes:
        model: class name of the model.
        nodes: primitives, int8 copies of tensors, outputs and gradients.
    """

    model: str
    nodes: tuple[NodeError, ...]

    def of(self, kind: str) -> list[NodeError]:
        """The nodes of one :attr:`NodeError.kind`, worst first."""
        return [n for n in self.nodes if n.kind == kind]

    def __str__(self) -> str:
        return printed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.model}: INT8 against full precision, worst first", title_justify="left")
        for heading in ("node", "module", "half", "kind"):
            table.add_column(heading, overflow="fold")
        for heading in ("relative error", "cosine", "its own error"):
            table.add_column(heading, justify="right", overflow="fold")
        for n in self.nodes:
            own = "" if n.own is None else f"{n.own:.2%}"
            row = (n.node, n.module or "(model)", n.half, _kind(n), f"{n.relative:.2%}", f"{n.cosine:.5f}", own)
            table.add_row(*map(escape, row), style=None if n.quantized else "dim")
        yield table


def _kind(error: NodeError) -> str:
    if not error.parameter:
        return error.kind
    gradient = f"{GRADIENT} of {error.parameter}"
    return gradient if error.kind == GRADIENT else f"{error.kind}, {gradient}"


def error_report(
    model: nn.Module, *inputs: Any, loss_fn: Callable[[Any], Tensor] | None = None, **kwargs: Any
) -> ErrorReport:
    """Run one step of a compiled model, quantized and exact side by side, print and return where they differ.

    Both runs share weights, inputs, dropout masks and the gradient that the model's output receives, so every
    difference is due to rounding. A model with eager islands is compared part by part: each part starts from the values
    of the quantized run. Parameters, buffers, attributes of modules, columns of graphs, gradients and the random number
    generator are left as they were.

    Args:
        model: a result of :func:`gqc.compile`; it is compiled for this call if it has not been.
        *inputs: what the model is called with.
        loss_fn: takes the model's result and returns the scalar whose gradient starts the backward. By default every
            element of every output receives a gradient drawn from N(0, 1). Without gradients it is not called.
        **kwargs: what the model is called with by name.

    Raises:
        TypeError: the model did not come from :func:`gqc.compile`, its forward does not take these arguments, or
            ``loss_fn`` is no function.
        CaptureError: calls of this kind run in eager full precision, so there is nothing to compare.
        GqcError: ``loss_fn`` returned no number that depends on the model.
    """
    report = measure_errors(model, inputs, kwargs, loss_fn)
    show(report)
    return report


def measure_errors(
    model: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[[Any], Tensor] | None = None,
) -> ErrorReport:
    """What :func:`error_report` prints."""
    state = state_of(model)
    check_call("gqc.error_report(model, *inputs)", state.model, inputs, kwargs, ("loss_fn",))
    check_loss("gqc.error_report", loss_fn)
    with undone(state.model, state.seed):
        variant, call = variant_of(state, inputs, kwargs)
        recorder = _Recorder()
        with columns_put_back(variant, call):
            result = variant.run(call, inputs, kwargs, recorder)
            differentiate("gqc.error_report", result, loss_fn, [*state.model.parameters(), *call.flat])
        nodes = [error for stage in recorder.stages for error in stage.errors(state.seed)]
    nodes.sort(key=lambda n: (not math.isnan(n.relative), -n.relative))
    return ErrorReport(type(model).__name__, tuple(nodes))


@dataclass(frozen=True)
class _RunStage:
    """A stage with what went into it and, after the backward, the gradients of its results."""

    stage: CompiledStage
    arguments: list[Any]
    results: list[Any]
    gradients: dict[int, Tensor]

    def errors(self, seed: SeedSource) -> Iterator[NodeError]:
        joint = self.stage.joint
        given = iter(self.arguments)

        def value(p: Placeholder) -> Any:
            if p.kind == TANGENT:
                return self._gradient(p.index)
            return seed(joint.device) if p.kind == SEED else next(given)

        values = [value(p) for p in joint.placeholders]
        return (error for error, _ in node_errors(joint, values))

    def receive(self, index: int, gradient: Tensor | None) -> None:
        """Keep the gradient of a result; autograd gives ``None`` where the loss does not depend on it."""
        if gradient is not None:
            self.gradients[index] = gradient.detach()

    def _gradient(self, index: int) -> Tensor:
        return self.gradients.get(index, torch.zeros_like(self.results[index]))


class _Recorder:
    """Runs the steps of a variant and keeps what goes through its stages."""

    def __init__(self) -> None:
        self.stages: list[_RunStage] = []

    def __call__(self, step: CompiledStage | IslandStep, values: dict[str, Any]) -> None:
        if isinstance(step, IslandStep):
            step(values)
            return
        arguments = [x.detach().clone() if isinstance(x, Tensor) else x for x in step.arguments(values)]
        step(values)
        results = [values[name] for name in step.writes]
        run = _RunStage(step, arguments, results, {})
        for index, result in enumerate(results):
            if isinstance(result, Tensor) and result.requires_grad:
                result.register_hook(partial(run.receive, index))
        self.stages.append(run)
