"""``gqc.explain``: what the compiler did with a model, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from torch import nn

from gqc.capture.islands import StructureIsland
from gqc.compile import Fallback, state_of
from gqc.cuda_graph import Usage
from gqc.passes import PIPELINE
from gqc.passes.choose_bits import BitRule
from gqc.passes.int8_copies import lifetimes
from gqc.passes.measure_saved import SAVED_BYTES
from gqc.passes.nodes import example
from gqc.passes.pipeline import FIND_MESSAGES
from gqc.passes.report import COMPRESSED, FOUND, KEPT, MOVED, QUANTIZED, Decision, Lifetime, Report
from gqc.passes.saved_plan import SavedPlan
from gqc.passes.saved_values import SavedTensor
from gqc.text import bytes_text, printed, show
from gqc.variant import CompiledStage, IslandStep, Variant

_SUMMARIZED = (FOUND, QUANTIZED, KEPT, MOVED, COMPRESSED)
_UNDECIDED = Decision("", "", "", "", KEPT, "no pass decided about it")


@dataclass(frozen=True)
class StageExplanation:
    """A part of the model that was compiled as one graph.

    Attributes:
        reports: what each pass decided, in running order.
        saved: what the forward keeps for the backward; ``nbytes()`` of each is its memory at the first call.
        lifetimes: the int8 copies of tensors: where each is made, and where it is read last.
        arguments: names of the parameters, buffers and inputs, which the caller holds.
        plan: what becomes of each value that the backward reads of the forward.
        cuda_graph: with ``Policy.cuda_graph``: what was replayed so far, and why not all.
    """

    reports: tuple[Report, ...]
    saved: tuple[SavedTensor, ...]
    lifetimes: tuple[Lifetime, ...]
    arguments: frozenset[str] = frozenset()
    plan: tuple[SavedPlan, ...] = ()
    cuda_graph: Usage | None = None

    def decisions(self, action: str) -> list[Decision]:
        """Decisions of all passes with one :attr:`Decision.action`."""
        return [d for report in self.reports for d in report.decisions if d.action == action]

    @property
    def skipped(self) -> list[str]:
        """Names of the built-in passes that were switched off."""
        ran = {report.name for report in self.reports}
        return [name for name in (FIND_MESSAGES, *(step.name for step in PIPELINE)) if name not in ran]

    @property
    def saved_bytes(self) -> int:
        """Memory of the saved tensors at the first call, without parameters and inputs."""
        return sum(s.nbytes() for s in self.saved)

    @property
    def saved_bytes_full_precision(self) -> int:
        """The same without quantization."""
        return sum(report.numbers.get(SAVED_BYTES, 0) for report in self.reports)


@dataclass(frozen=True)
class IslandExplanation:
    """A part of the model that runs eagerly between two stages.

    Attributes:
        name: its module or function.
        reason: why it is not compiled.
        remembered: whether it computes from integer arguments only (degrees, normalisation), once a graph.
    """

    name: str
    reason: str
    remembered: bool = False


@dataclass(frozen=True)
class VariantExplanation:
    """One compiled form of the model.

    Attributes:
        why: why it was compiled.
        parts: its stages and eager islands in running order.
        bit_rule: what ``Policy.bits="auto"`` measured and chose, ``None`` for other policies.
    """

    why: str
    parts: tuple[StageExplanation | IslandExplanation, ...]
    bit_rule: BitRule | None = None

    @property
    def stages(self) -> list[StageExplanation]:
        return [p for p in self.parts if isinstance(p, StageExplanation)]

    @property
    def islands(self) -> list[IslandExplanation]:
        """Without those that are computed once a graph."""
        return [p for p in self.parts if isinstance(p, IslandExplanation) and not p.remembered]


@dataclass(frozen=True)
class Explanation:
    """What gqc did with a model.

    Attributes:
        model: class name of the model.
        variants: its compiled forms, in the order of compilation; the first is the capture, the others recompilations.
        fallbacks: kinds of calls that run in eager full precision.
    """

    model: str
    variants: tuple[VariantExplanation, ...]
    fallbacks: tuple[Fallback, ...]

    def __str__(self) -> str:
        return printed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.variants and not self.fallbacks:
            yield f"{self.model} has not run yet: the first call captures and compiles it."
        for number, variant in enumerate(self.variants, 1):
            yield f"[bold]{self.model}, variant {number} of {len(self.variants)}[/] ({escape(variant.why)})"
            if variant.bit_rule is not None:
                yield f"  {escape(str(variant.bit_rule))}"
            for part in variant.parts:
                yield from _island(part) if isinstance(part, IslandExplanation) else _stage(part)
        for fallback in self.fallbacks:
            where = " at ".join(filter(None, (fallback.module or "the model", fallback.location)))
            yield f"[bold]runs in eager full precision[/]: {escape(where)}: {escape(fallback.reason)}"


def explain(model: nn.Module) -> Explanation:
    """Print and return what was found, quantized, shared and kept in a compiled model, and why.

    Args:
        model: a result of :func:`gqc.compile` that has been called.

    Raises:
        TypeError: the model did not come from :func:`gqc.compile`.
    """
    state = state_of(model)
    explanation = Explanation(
        model=type(model).__name__,
        variants=tuple(_explain_variant(v) for variants in state.variants.values() for v in variants),
        fallbacks=tuple(state.fallbacks.values()),
    )
    show(explanation)
    return explanation


def _explain_variant(variant: Variant) -> VariantExplanation:
    return VariantExplanation(variant.why, tuple(_explain_step(step) for step in variant.steps), variant.bit_rule)


def _explain_step(step: CompiledStage | IslandStep) -> StageExplanation | IslandExplanation:
    if isinstance(step, IslandStep):
        island = step.call.island
        return IslandExplanation(island.name, island.reason, isinstance(island, StructureIsland))
    arguments = frozenset(node.name for node in step.joint.graph.find_nodes(op="placeholder"))
    usage = deepcopy(step.graphed.usage) if step.graphed is not None else None
    copies = tuple(lifetimes(step.joint))
    return StageExplanation(tuple(step.reports), tuple(step.saved), copies, arguments, step.plan, usage)


def _island(island: IslandExplanation) -> Iterator[str]:
    kind = "" if island.remembered else "eager island "
    yield f"  {kind}{escape(island.name)}: {escape(island.reason)}"


def _stage(stage: StageExplanation) -> Iterator[str | Table]:
    found = stage.decisions(FOUND)
    decided = {d.node: d for d in stage.decisions(QUANTIZED) + stage.decisions(KEPT)}
    counts = Counter(decided[d.node].action for d in found if d.node in decided)
    if stage.skipped:
        yield f"  passes switched off: {', '.join(stage.skipped)}"
    yield f"  {len(found)} primitives found, {counts[QUANTIZED]} quantized, {counts[KEPT]} kept in full precision"
    if found:
        yield _primitives(found, decided)
    for decision in (d for report in stage.reports for d in report.decisions if d.action not in _SUMMARIZED):
        yield f"  {decision.action} {escape(decision.node)}: {escape(decision.reason)}"
    if stage.decisions(MOVED):
        yield f"  {len(stage.decisions(MOVED))} moved beside another reader of the same int8 copy"
    if stage.lifetimes:
        yield f"  {len(stage.lifetimes)} int8 copies: {bytes_text(sum(c.nbytes for c in stage.lifetimes))}"
        yield _copies(stage.lifetimes)
    if stage.saved:
        measured = "measure_saved" not in stage.skipped
        exact = f" instead of {bytes_text(stage.saved_bytes_full_precision)}" if measured else ""
        yield f"  saved for the backward: {bytes_text(stage.saved_bytes)}{exact}{_of_arguments(stage)}"
        yield _saved(stage.saved) if not stage.decisions(COMPRESSED) else _plan(stage.plan)
    if stage.cuda_graph is not None:
        yield from (f"  {escape(line)}" for line in stage.cuda_graph.lines())


def _primitives(found: Sequence[Decision], decided: Mapping[str, Decision]) -> Table:
    table = _table("", "half", "module", "node", "primitive", "because")
    for decision in found:
        last = decided.get(decision.node, _UNDECIDED)
        named = decision.reason.startswith(decision.primitive)
        what = decision.reason if named else f"{decision.primitive} {decision.reason}"
        row = (last.action, decision.half, decision.module or "(model)", decision.node, what, last.reason)
        table.add_row(*map(escape, row), style=None if last.action == QUANTIZED else "dim")
    return table


def _copies(lifetimes: Sequence[Lifetime]) -> Table:
    table = _table("bytes", "made in", "module", "int8 copy of", "readers", "last read by")
    for copy in lifetimes:
        until = f"{copy.last_use} ({copy.last_half})"
        row = (bytes_text(copy.nbytes), copy.half, copy.module or "(model)", copy.tensor, str(copy.readers), until)
        table.add_row(*map(escape, row))
    return table


def _saved(saved: Sequence[SavedTensor]) -> Table:
    """The saved tensors that cost memory, largest first."""
    table = _table("bytes", "dtype", "shape", "tensor")
    for tensor in sorted(saved, key=SavedTensor.nbytes, reverse=True):
        if tensor.nbytes() > 0:
            dtype, shape = (
                str(tensor.dtype).removeprefix("torch."),
                ", ".join(str(example(size)) for size in tensor.shape),
            )
            table.add_row(bytes_text(tensor.nbytes()), dtype, escape(f"[{shape}]"), escape(tensor.name))
    return table


def _plan(plan: Sequence[SavedPlan]) -> Table:
    """What becomes of the values that cost memory or did, largest first."""
    table = _table("bytes", "instead of", "dtype", "shape", "module", "tensor", "", "because")
    for value in sorted(plan, key=lambda v: (v.after, v.before), reverse=True):
        if value.before > 0:
            shape = f"[{', '.join(map(str, value.shape))}]"
            row = (bytes_text(value.after), bytes_text(value.before), value.dtype, shape, value.module or "(model)")
            table.add_row(*map(escape, (*row, value.name, value.how, value.reason)))
    return table


def _of_arguments(stage: StageExplanation) -> str:
    """Explains a saved total that grows: the int8 copy of an argument counts, the argument itself does not."""
    nbytes = sum(c.nbytes for c in stage.lifetimes if c.tensor in stage.arguments and c.last_half != c.half)
    return f"; {bytes_text(nbytes)} are int8 copies of arguments, whose own memory the caller holds" if nbytes else ""


def _table(*columns: str) -> Table:
    """A table that cuts no name: what is wider than the terminal allows goes on in the next line."""
    table = Table(box=None, padding=(0, 1, 0, 2))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
