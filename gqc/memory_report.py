"""``gqc.memory_report``: what a model keeps between forward and backward, tensor by tensor, and the peak of a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gqc.capture import Call
from gqc.capture.islands import StructureIsland
from gqc.compile import CompileState, state_of
from gqc.errors import GqcError
from gqc.given import check_call, check_loss
from gqc.joint import SEED
from gqc.memory_plot import stacked
from gqc.passes.measure_saved import SAVED_BYTES
from gqc.passes.nodes import example
from gqc.passes.saved_plan import AS_IS, SavedPlan
from gqc.peak import most_allocated
from gqc.saved_storages import SavedStorages, address, watched
from gqc.text import bytes_text, printed, show
from gqc.trial import columns_put_back, differentiate, undone, variant_of
from gqc.variant import CompiledStage, IslandStep, Variant


@dataclass(frozen=True)
class MemoryReport:
    """Memory of a training step; all sizes in bytes, at the sizes of the call that was measured.

    Attributes:
        model: class name of the model.
        entries: what the backward reads of the forward, largest first; parameters, buffers and inputs apart, which
            the caller holds anyway.
        saved_bytes_eager: what the eager model saves, each storage counted once; ``None`` where it cannot run, as with
            a graph on the CPU and features on a GPU, or for want of memory.
        saved_bytes_fp32: what gqc would save in full precision, ``None`` if the pass ``measure_saved`` is skipped.
        saved_bytes_measured: what autograd really held after the forward, each storage counted once.
        peak_bytes: the most that tensors took at one time in a step, beyond parameters, inputs and what else was there
            before; gradients count.
        peak_bytes_eager: the same of the eager model, ``None`` where it cannot run.
        device: what was measured: ``"cpu"`` or a GPU.
    """

    model: str
    entries: tuple[SavedPlan, ...]
    saved_bytes_eager: int | None
    saved_bytes_fp32: int | None
    saved_bytes_measured: int
    peak_bytes: int
    peak_bytes_eager: int | None
    device: str

    @property
    def saved_bytes(self) -> int:
        """What is saved for the backward: the sum of the entries."""
        return sum(entry.after for entry in self.entries)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw what is saved as stacked bars: the eager model, the entries in full precision, and as they are saved.

        Args:
            path: image to write; its suffix is the format (``.png``, ``.svg``, ``.pdf``).

        Raises:
            GqcError: matplotlib is not installed.
        """
        try:
            figure = stacked(self.model, self.entries, self.saved_bytes_eager)
        except ImportError as error:
            raise GqcError(f"MemoryReport.plot needs matplotlib ({error}): pip install matplotlib") from error
        figure.savefig(path)

    def __str__(self) -> str:
        return printed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=f"{self.model}: saved for the backward, largest first", title_justify="left")
        for heading in ("before", "after"):
            table.add_column(heading, justify="right")
        for heading in ("how", "dtype", "shape", "module", "tensor", "because"):
            table.add_column(heading, overflow="fold")
        for entry in self.entries:
            shape = f"[{', '.join(map(str, entry.shape))}]"
            sizes = (bytes_text(entry.before), bytes_text(entry.after))
            row = (*sizes, entry.how, entry.dtype, shape, entry.module or "(model)", entry.name, entry.reason)
            table.add_row(*map(escape, row), style=None if entry.after < entry.before else "dim")
        yield table
        yield f"saved: {bytes_text(self.saved_bytes)}{_beside(self._exact(), self.saved_bytes)}"
        peaks = {"eager": self.peak_bytes_eager}
        yield f"peak on {self.device}: {bytes_text(self.peak_bytes)}{_beside(peaks, self.peak_bytes)}"

    def _exact(self) -> dict[str, int | None]:
        return {"gqc in full precision": self.saved_bytes_fp32, "eager": self.saved_bytes_eager}


def _beside(others: dict[str, int | None], nbytes: int) -> str:
    """Other numbers and how many times as large they are."""
    known = {name: other for name, other in others.items() if other is not None}
    texts = [f"{name} {bytes_text(b)}" + (f" ({b / nbytes:.1f}x)" if nbytes else "") for name, b in known.items()]
    return f"; {', '.join(texts)}" if texts else ""


def memory_report(
    model: nn.Module, *inputs: Any, loss_fn: Callable[[Any], Tensor] | None = None, **kwargs: Any
) -> MemoryReport:
    """Run a step of a compiled model and of its eager original, print and return what they keep for the backward.

    Parameters, buffers, attributes of modules, columns of graphs, gradients and the random number generator are left as
    they were. If the model was compiled for a call of other sizes, it is compiled anew for the report.

    Args:
        model: a result of :func:`gqc.compile`; it is compiled for this call if it has not been.
        *inputs: what the model is called with.
        loss_fn: takes the model's result and returns the scalar whose gradient starts the backward. By default every
            element of every output receives a gradient drawn from N(0, 1).
        **kwargs: what the model is called with by name.

    Raises:
        TypeError: the model did not come from :func:`gqc.compile`, its forward does not take these arguments, or
            ``loss_fn`` is no function.
        CaptureError: calls of this kind run in eager full precision, so nothing is saved in another way.
        GqcError: no gradient is computed, so that nothing is saved, or ``loss_fn`` returned no number that depends on
            the model.
    """
    report = measure_memory(model, inputs, kwargs, loss_fn)
    show(report)
    return report


def measure_memory(
    model: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[[Any], Tensor] | None = None,
) -> MemoryReport:
    """What :func:`memory_report` prints."""
    state = state_of(model)
    check_call("gqc.memory_report(model, *inputs)", state.model, inputs, kwargs, ("loss_fn",))
    check_loss("gqc.memory_report", loss_fn)
    with undone(state.model, state.seed):
        variant, call = _variant_of_sizes(state, inputs, kwargs)
        with columns_put_back(variant, call):
            return _Measurement(state.model, variant, call, inputs, kwargs, loss_fn).report(type(model).__name__)


def _variant_of_sizes(state: CompileState, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Call]:
    """A variant that was compiled for a call of just these sizes, at which the sizes in its plan hold."""
    variant, call = variant_of(state, inputs, kwargs)
    sizes = [[example(size) for size in fake.shape] for fake in variant.captured.fakes]
    if sizes == [list(x.shape) for x in call.flat]:
        return variant, call
    alone = CompileState(state.model, state.policy)
    alone.training_bits = state.training_bits
    return variant_of(alone, inputs, kwargs)


class _Measurement:
    """A compiled and an eager step of the same call."""

    def __init__(
        self,
        model: nn.Module,
        variant: Variant,
        call: Call,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss_fn: Callable[[Any], Tensor] | None,
    ) -> None:
        self._model, self._variant, self._call = model, variant, call
        self._inputs, self._kwargs, self._loss_fn = inputs, kwargs, loss_fn
        held = [*model.parameters(), *model.buffers(), *call.flat, *tree_leaves((inputs, kwargs))]
        self._known = {address(x) for x in held if isinstance(x, Tensor)}
        self._leaves = [*model.parameters(), *call.flat]
        self._device = next((x.device for x in self._leaves if x.device.type != "cpu"), torch.device("cpu"))

    def report(self, name: str) -> MemoryReport:
        recorder, measured = self._compiled()
        entries = [*recorder.planned, *recorder.between]
        run = partial(self._variant.run, self._call, self._inputs, self._kwargs)
        peak = most_allocated(lambda: self._differentiate(run()), self._device)
        saved_eager, peak_eager = self._eager()
        return MemoryReport(
            model=name,
            entries=tuple(sorted((e for e in entries if e.before or e.after), key=lambda e: (-e.after, -e.before))),
            saved_bytes_eager=saved_eager,
            saved_bytes_fp32=self._in_full_precision(recorder),
            saved_bytes_measured=measured,
            peak_bytes=peak,
            peak_bytes_eager=peak_eager,
            device=str(self._device),
        )

    def _differentiate(self, result: Any) -> None:
        differentiate("gqc.memory_report", result, self._loss_fn, self._leaves)

    def _compiled(self) -> tuple[_Recorder, int]:
        """What the compiled forward saves, and the bytes that autograd then holds."""
        with watched(self._known) as saved:
            recorder = _Recorder(saved)
            result = self._variant.run(self._call, self._inputs, self._kwargs, recorder)
            if not any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(result)):
                raise GqcError(
                    f"gqc.memory_report: no output of {type(self._model).__name__} has a gradient, so that nothing is "
                    "saved: leave torch.no_grad(), or let a parameter require a gradient"
                )
            nbytes = saved.nbytes()
        self._differentiate(result)  # the first backward takes memory that stays
        return recorder, nbytes

    def _eager(self) -> tuple[int | None, int | None]:
        """What the eager model saves and its peak."""
        if self._call.moves_graphs:
            return None, None
        run = partial(self._model.forward, *self._inputs, **self._kwargs)
        try:
            with watched(self._known) as saved:
                result = run()
                nbytes = saved.nbytes()
            self._differentiate(result)
            del result
            return nbytes, most_allocated(lambda: self._differentiate(run()), self._device)
        except torch.OutOfMemoryError:
            return None, None

    def _in_full_precision(self, recorder: _Recorder) -> int | None:
        stages = [step for step in self._variant.steps if isinstance(step, CompiledStage)]
        found = [report.numbers[SAVED_BYTES] for s in stages for report in s.reports if SAVED_BYTES in report.numbers]
        return sum(found) + sum(entry.after for entry in recorder.between) if found else None


class _Recorder:
    """Runs the steps of a variant and notes what they save.

    Args:
        saved: sees what autograd saves meanwhile.

    Attributes:
        planned: what stages save.
        between: what eager islands save, and what stages save of values that come from outside of them.
    """

    def __init__(self, saved: SavedStorages) -> None:
        self.planned: list[SavedPlan] = []
        self.between: list[SavedPlan] = []
        self._saved = saved
        self._counted: set[int] = set()

    def __call__(self, step: CompiledStage | IslandStep, values: dict[str, Any]) -> None:
        start = len(self._saved)
        step(values)
        tensors = self._saved.since(start)
        if isinstance(step, IslandStep):
            island = step.call.island
            if isinstance(island, StructureIsland):
                self._saved.known.update(address(values[name]) for name in step.call.writes)
            for tensor in tensors:
                self._between(tensor, island.name, f"runs eagerly: {island.reason}")
        elif tensors:
            crossing = {described.name for described in step.saved if described.held}
            self.planned += [plan for plan in step.plan if plan.name not in crossing]
            seeds = {p.node.name for p in step.joint.placeholders if p.kind == SEED}
            for described, tensor in zip((s for s in step.saved if s.dtype is not None), tensors, strict=True):
                if described.name in seeds:
                    self.planned.append(_as_is(tensor, described.name, "the backward draws its random bits from it"))
                elif described.held:
                    self._between(tensor, described.name, "an eager island or another stage gives it")
                self._counted.add(address(tensor))

    def _between(self, tensor: Tensor, name: str, reason: str) -> None:
        """Note a tensor that is no stage's own, unless it is known or noted already."""
        if address(tensor) in self._counted or address(tensor) in self._saved.known:
            return
        self._counted.add(address(tensor))
        self.between.append(_as_is(tensor, name, reason))


def _as_is(tensor: Tensor, name: str, reason: str) -> SavedPlan:
    dtype, nbytes = str(tensor.dtype).removeprefix("torch."), tensor.nbytes
    return SavedPlan(name, "", tuple(tensor.shape), dtype, nbytes, nbytes, AS_IS, reason)
