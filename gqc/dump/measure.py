"""Scales and errors of a variant, measured on a call of the user's own while it runs.

Nothing is run again: what goes into each stage, its random numbers, and the gradients that its results receive are
kept, and its joint graph is then run quantized and exact side by side on them. So the numbers are those of the step
that trains the model, and neither the generator nor the step counter, buffers or ``.grad`` notice.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gqc.dump.source import identifier
from gqc.execute import Executable
from gqc.generators import GeneratorStates, generators_at
from gqc.joint import TANGENT
from gqc.node_error import OPERAND, node_errors
from gqc.variant import CompiledStage, IslandStep


@dataclass(frozen=True)
class NodeMeasure:
    """The error of a node, see :class:`gqc.node_error.NodeError`, and the scale of an int8 copy.

    A number that is not finite is text (``"nan"``, ``"inf"``), as JSON has none.

    Attributes:
        node: its name in the dump.
        kind, relative, cosine, own: as there.
        gradient_of: name of the parameter whose gradient the node is.
        absmax: of an int8 copy: the largest magnitude in the tensor, ``None`` for other nodes.
        scale: of an int8 copy: what an integer is multiplied by.
    """

    node: str
    kind: str
    relative: float | str
    cosine: float | str
    own: float | str | None
    gradient_of: str
    absmax: float | str | None
    scale: float | str | None


@dataclass(frozen=True)
class Measures:
    """What was measured of a stage.

    Attributes:
        note: one sentence: on what it was measured, or why it was not.
        nodes: primitives, int8 copies, outputs and gradients in graph order; empty if nothing was measured.
    """

    note: str
    nodes: tuple[NodeMeasure, ...] = ()


UNMEASURED = Measures("Scales and errors are not measured yet: no call has run its backward.")


class MeasuredCall:
    """Runs the steps of a variant for one call and measures its stages.

    Args:
        gradients: where the gradients come from that the backward starts with, to tell.
        several: whether the variant has several stages.
        found: takes the number of a stage, counted from 1, and its measures: a stage with a backward is measured after
            it, another before its forward.
    """

    def __init__(self, gradients: str, several: bool, found: Callable[[int, Measures], None]) -> None:
        self._gradients = gradients
        self._several = several
        self._found = found
        self._stages = 0

    def __call__(self, step: CompiledStage | IslandStep, values: dict[str, Any]) -> None:
        if isinstance(step, CompiledStage):
            self._stages += 1
            step = dataclasses.replace(step, executable=self._watched(step, self._stages))
        step(values)

    def _watched(self, stage: CompiledStage, number: int) -> Executable:
        """A copy of what runs the stage that keeps what goes in."""
        run = copy.copy(stage.executable)
        forward, backward = run.forward_half, run.backward_half
        note = f"Measured on a call of the model{self._gradients if backward is not None else ''}."
        if self._several:
            note += " Errors count from what reaches this stage: values and gradients as they were in that call."
        kept = _Kept(stage, note, lambda measures: self._found(number, measures))

        def forward_half(*arguments: Any) -> Any:
            kept.keep(arguments)
            if backward is None:
                kept.measure([])
            return forward(*arguments)

        run.forward_half = forward_half
        if backward is not None:

            def backward_half(values: list[Any]) -> Any:
                tangents = values[len(values) - len(run.tangents) :]
                results = backward(values)
                kept.measure(tangents)
                return results

            run.backward_half = backward_half
        return run


@dataclass
class _Kept:
    """What went into a stage, until it has been measured."""

    stage: CompiledStage
    note: str
    found: Callable[[Measures], None]
    arguments: list[Any] = field(default_factory=list)
    generators: GeneratorStates | None = None

    def keep(self, arguments: Sequence[Any]) -> None:
        self.generators = GeneratorStates.now()
        try:
            self.arguments = [x.detach().clone() if isinstance(x, Tensor) else x for x in arguments]
        except Exception as error:
            self._give_up(error)

    def measure(self, tangents: Sequence[Any]) -> None:
        if self.generators is None:  # measured before: a backward may run twice
            return
        given, gradients = iter(self.arguments), iter(tangents)
        placeholders = self.stage.joint.placeholders
        try:
            values = [next(gradients if p.kind == TANGENT else given) for p in placeholders]
            with generators_at(self.generators):
                nodes = tuple(_measures(self.stage, values))
        except Exception as error:
            self._give_up(error)
            return
        self._done(Measures(self.note, nodes))

    def _give_up(self, error: Exception) -> None:
        # The numbers are only looked at; memory may be short, say, where training has enough.
        self._done(Measures(f"Scales and errors could not be measured: {type(error).__name__}: {error}"))

    def _done(self, measures: Measures) -> None:
        self.generators = None
        self.arguments = []
        self.found(measures)


def _measures(stage: CompiledStage, values: list[Any]) -> Iterator[NodeMeasure]:
    for error, value in node_errors(stage.joint, values):
        absmax = scale = None
        if error.kind == OPERAND:
            floats = value.unrounded[0]
            absmax = _number(floats.abs().max().item() if floats.numel() else 0.0)
            scale = _number(value.quantized[1].item())
        yield NodeMeasure(
            node=identifier(error.node),
            kind=error.kind,
            relative=_number(error.relative),
            cosine=_number(error.cosine),
            own=None if error.own is None else _number(error.own),
            gradient_of=error.parameter,
            absmax=absmax,
            scale=scale,
        )


def _number(x: float) -> float | str:
    return x if math.isfinite(x) else str(x)
