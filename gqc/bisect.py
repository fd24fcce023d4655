"""``gqc.bisect``: which quantized primitives explain the gap between a quantized and an exact model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import fx, nn

from gqc.compile import compile, is_compiled, state_of
from gqc.errors import GqcError
from gqc.generators import generators_kept
from gqc.given import arguments, copy_of
from gqc.joint import JointGraph
from gqc.passes.nodes import origin
from gqc.passes.primitive import Primitive, marked
from gqc.passes.report import KEPT, Decision, Report
from gqc.policy import Insert, Policy
from gqc.text import a_kind, printed, show


@dataclass(frozen=True, order=True)
class Suspect:
    """A primitive that is quantized under the policy.

    Attributes:
        module: dotted path of the module that it comes from, ``""`` for the model itself.
        node: its name in the joint graph.
        primitive: ``"gemm"``, ``"spmm"``, ``"sddmm"``.
        half: ``"forward"`` or ``"backward"``.
    """

    module: str
    node: str
    primitive: str
    half: str

    @classmethod
    def of(cls, node: fx.Node, primitive: Primitive) -> Suspect:
        return cls(origin(node).module, node.name, primitive.kind, primitive.half)


@dataclass(frozen=True)
class Bisection:
    """The result of :func:`bisect`.

    Attributes:
        nodes: quantizing these alone gives ``explained``; without any one of them it explains too little.
        exact: the loss with nothing quantized.
        quantized: the loss with everything quantized that the policy quantizes.
        explained: the loss with only ``nodes`` quantized.
        suspects: how many primitives the policy quantizes.
        runs: how many sets of primitives were tried.
    """

    nodes: tuple[Suspect, ...]
    exact: float
    quantized: float
    explained: float
    suspects: int
    runs: int

    def __str__(self) -> str:
        return printed(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield f"exact {self.exact:.6g}, {self.suspects} primitives quantized {self.quantized:.6g}"
        if not self.nodes:
            yield "there is no gap to explain"
            return
        share = (self.explained - self.exact) / (self.quantized - self.exact)
        yield f"these alone give {self.explained:.6g}, {share:.0%} of the gap"
        table = Table()
        for heading in ("module", "primitive", "half", "node"):
            table.add_column(heading, overflow="fold")
        for n in self.nodes:
            table.add_row(*map(escape, (n.module or "(model)", n.primitive, n.half, n.node)))
        yield table
        yield f"{self.runs} sets tried"


def bisect(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    inputs: Sequence[Any],
    policy: Policy | None = None,
    *,
    share: float = 0.8,
    repeats: int = 1,
    progress: bool = True,
) -> Bisection:
    """Find a smallest set of quantized primitives that explains a loss or accuracy gap; print and return it.

    Delta debugging (Zeller and Hildebrandt, 2002, algorithm ddmin) over the primitives that the policy quantizes: a set
    explains the gap if quantizing it alone, everything else exact, moves the loss by at least ``share`` of the gap.
    The result cannot be made smaller by leaving out one of its members.

    Args:
        model: an eager or a compiled model; it is copied for each run and never changed.
        loss_fn: ``loss_fn(model, *inputs)`` returns the number to explain. It gets a fresh compiled copy each time and
            may train it, so that a gap after training can be explained; only then do primitives of the backward matter.
        inputs: what ``loss_fn`` gets after the model.
        policy: how to quantize; default: that of a compiled model, else ``Policy()``.
        share: part of the gap that counts as explained, above 0 and at most 1.
        repeats: every loss is the mean over this many seeds; more where rounding noise is as large as the gap.
        progress: show a progress bar.

    Raises:
        ValueError: ``share`` or ``repeats`` is out of range.
        TypeError: ``model`` is not a ``torch.nn.Module``, ``inputs`` no tuple, or ``loss_fn`` no function.
        GqcError: ``loss_fn`` returned no number, no call of the copy was compiled, or the model cannot be copied.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"gqc.bisect takes a torch.nn.Module, not {type(model).__name__}")
    if not callable(loss_fn):
        raise TypeError(f"gqc.bisect: loss_fn={loss_fn!r} must be a function of the model and the inputs")
    inputs, _ = arguments("gqc.bisect", inputs)
    if not (isinstance(share, Real) and 0 < share <= 1):
        raise ValueError(f"gqc.bisect: share={share!r} must be above 0 and at most 1")
    if not (isinstance(repeats, int) and repeats >= 1):
        raise ValueError(f"gqc.bisect: repeats={repeats!r} must be an integer of at least 1")
    eager = state_of(model).model if is_compiled(model) else model
    policy = policy or (state_of(model).policy if is_compiled(model) else Policy())
    trial = _Trial(eager, loss_fn, inputs, Policy.of(policy, {}), repeats)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"), TimeElapsedColumn()
    with Progress(*columns, transient=True, disable=not progress) as bar:
        task = bar.add_task("exact", total=None, left="")
        exact = trial(())
        bar.update(task, description="quantized")
        suspects = trial.suspects()
        quantized = trial(suspects)
        gap = quantized - exact

        def explains(nodes: tuple[Suspect, ...]) -> bool:
            bar.update(task, description="bisecting", left=f"run {len(trial.losses)}: {len(nodes)} of {len(suspects)}")
            moved = trial(nodes) - exact
            return moved * math.copysign(1, gap) >= share * abs(gap)

        if math.isnan(gap):
            raise GqcError(
                f"gqc.bisect: loss_fn gave {exact} without and {quantized} with quantization: no gap of numbers"
            )
        nodes = () if gap == 0 else smallest(suspects, explains)
    result = Bisection(nodes, exact, quantized, trial(nodes), len(suspects), len(trial.losses))
    show(result)
    return result


def smallest(items: tuple[Suspect, ...], holds: Callable[[tuple[Suspect, ...]], bool]) -> tuple[Suspect, ...]:
    """A subset for which ``holds`` and which no longer does without any single member (ddmin).

    Args:
        items: a set for which ``holds``.
        holds: decides on subsets, in the order of ``items``.
    """
    parts = 2
    while len(items) > 1:
        bounds = [len(items) * i // parts for i in range(parts + 1)]
        chunks = [items[a:b] for a, b in pairwise(bounds)]
        rests = [tuple(x for x in items if x not in chunk) for chunk in chunks] if parts > 2 else []
        smaller = next((s for s in (*chunks, *rests) if holds(s)), None)
        if smaller is not None:
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            items = smaller
        elif parts < len(items):
            parts = min(2 * parts, len(items))
        else:
            break
    return items


class _Trial:
    """Losses with only some primitives quantized; each set runs once."""

    def __init__(
        self, eager: nn.Module, loss_fn: Callable[..., Any], inputs: tuple[Any, ...], policy: Policy, repeats: int
    ) -> None:
        self.eager, self.loss_fn, self.inputs, self.policy, self.repeats = eager, loss_fn, inputs, policy, repeats
        self.losses: dict[frozenset[Suspect], float] = {}
        self._seen: dict[Suspect, None] = {}

    def __call__(self, nodes: Sequence[Suspect]) -> float:
        chosen = frozenset(nodes)
        if chosen not in self.losses:
            self.losses[chosen] = sum(self._run(chosen, seed) for seed in range(self.repeats)) / self.repeats
        return self.losses[chosen]

    def suspects(self) -> tuple[Suspect, ...]:
        """What the policy quantizes in the calls that ``loss_fn`` makes, in graph order; known after a first run."""
        return tuple(self._seen)

    def _run(self, chosen: frozenset[Suspect], seed: int) -> float:
        only = Insert(_Only(chosen, self._seen), before="quantize_operands", name="gqc.bisect")
        policy = replace(self.policy, passes=(*self.policy.passes, only), cuda_graph=False)
        model = compile(copy_of(self.eager, "gqc.bisect"), policy)
        try:
            inputs = copy.deepcopy(self.inputs)
        except (RuntimeError, TypeError) as error:
            raise GqcError(f"gqc.bisect: inputs cannot be copied for each run ({error}): detach() them") from error
        with generators_kept():
            torch.manual_seed(seed)
            loss = self.loss_fn(model, *inputs)
        if not state_of(model).variants:
            why = "; ".join(map(str, state_of(model).fallbacks.values())) or (
                "loss_fn did not call it, or its first call filled a cache of a module: call the model once before"
            )
            raise GqcError(f"gqc.bisect: no call of the model was compiled: {why}")
        if isinstance(loss, Real) or (isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.is_complex()):
            return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise GqcError(f"gqc.bisect: loss_fn returned {a_kind(loss)}{shape}, not one number")


@dataclass(frozen=True)
class _Only:
    """A pass that keeps everything but the chosen primitives, and notes what there is to choose from."""

    chosen: frozenset[Suspect]
    seen: dict[Suspect, None]

    def __call__(self, joint: JointGraph, policy: Policy) -> Report:
        report = Report("gqc.bisect")
        if "quantize_operands" in policy.skip:
            return report
        for node, primitive in marked(joint.graph):
            if primitive.kept is not None:
                continue
            suspect = Suspect.of(node, primitive)
            self.seen.setdefault(suspect)
            if suspect not in self.chosen:
                node.meta["gqc"] = replace(primitive, kept="not among the primitives that are tried")
                report.decisions.append(
                    Decision(node.name, suspect.module, suspect.primitive, suspect.half, KEPT, "not tried")
                )
        return report
