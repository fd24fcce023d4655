"""One compiled form of a model: a capture, its stages after all passes, and how to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from gqc.autocast import autocast_off
from gqc.capture import Call, Captured, calling
from gqc.capture.islands import StructureIsland
from gqc.constant_inputs import RememberedInputs
from gqc.cuda_graph import GraphedStage
from gqc.errors import CaptureError, LibraryError
from gqc.execute import Executable
from gqc.joint import BUFFER, INPUT, PARAMETER, JointGraph, build_joint
from gqc.passes import run as run_passes
from gqc.passes.choose_bits import BitRule
from gqc.passes.output_layer import inputs_behind_outputs
from gqc.passes.partition import SavedTensor, partition
from gqc.passes.pipeline import FIND_MESSAGES, Watch
from gqc.passes.report import FOUND, Report
from gqc.passes.saved_plan import SavedPlan, given_to_backward, plan_of
from gqc.passes.user_keep import check_nodes
from gqc.policy import Policy
from gqc.seed import SeedSource
from gqc.stages import IslandCall, Stage, cut

if TYPE_CHECKING:
    from gqc.dump.dumper import VariantDump
    from gqc.save_rule import SaveRule

Slot = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class CompiledStage:
    """A stage after all passes.

    Attributes:
        joint: the rewritten joint graph.
        reports: what each pass decided.
        saved: what the forward keeps for the backward.
        plan: what becomes of each value that the backward reads of the forward.
        slots: where the values of the joint graph's parameters and buffers stand.
        inputs: which values the other placeholders take, as positions in ``reads``.
        reads, writes: names of the values that the stage takes and gives.
        graphed: runs ``executable`` by CUDA graphs, with ``Policy.cuda_graph``.
    """

    joint: JointGraph
    reports: list[Report]
    saved: list[SavedTensor]
    plan: tuple[SavedPlan, ...]
    executable: Executable
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    graphed: GraphedStage | None = None

    def __call__(self, values: dict[str, Any]) -> None:
        run = self.executable if self.graphed is None else self.graphed
        values.update(zip(self.writes, run(self.arguments(values)), strict=True))

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """What the joint graph's parameters, buffers and inputs stand for in a call."""
        return [table[name] for table, name in self.slots] + [values[self.reads[i]] for i in self.inputs]


@dataclass(frozen=True)
class IslandStep:
    """An eager island between two compiled stages."""

    call: IslandCall

    def __call__(self, values: dict[str, Any]) -> None:
        results = self.call.graph.forward(*[values[name] for name in self.call.reads])
        values.update(zip(self.call.writes, results, strict=True))


RunStep = Callable[[CompiledStage | IslandStep, dict[str, Any]], None]


@dataclass(frozen=True)
class Variant:
    """A capture compiled under a policy; it serves the calls that share its key and pass its guards.

    Attributes:
        captured: what the model's forward did on the call that it was compiled for.
        steps: its parts in running order.
        names: the values that the tensors of a call become.
        results: the values that make up the model's output.
        why: why it was compiled.
        modules: kept alive, because the key that leads to this variant tells modules apart by identity.
        bit_rule: what ``Policy.bits="auto"`` decided, ``None`` for other policies.
        dump: measures the first call.
    """

    captured: Captured
    steps: tuple[CompiledStage | IslandStep, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]
    why: str
    modules: tuple[nn.Module, ...]
    bit_rule: BitRule | None = None
    dump: VariantDump | None = None

    @classmethod
    def build(
        cls,
        model: nn.Module,
        captured: Captured,
        policy: Policy,
        seed: SeedSource,
        why: str,
        dump: VariantDump | None = None,
        bit_rule: BitRule | None = None,
        save_rule: SaveRule | None = None,
    ) -> Variant:
        """Cut, differentiate, rewrite and partition a capture.

        Args:
            model: the eager model, whose parameters and buffers are read at each call.
            captured: what its forward did on the first call of this kind.
            policy: how to quantize.
            seed: source of the seeds of stochastic rounding.
            why: why this variant was compiled, for :func:`gqc.explain`.
            dump: looks at the graph of each stage after each pass.
            bit_rule: how many bits ``Policy.bits="auto"`` means.
            save_rule: how many each saved tensor has under ``save_bits="auto"``; 8 by default.

        Raises:
            CaptureError: AOTAutograd cannot differentiate what was captured.
            PolicyError: ``Policy.keep`` names a node that no stage has.
        """
        graph = captured.graph.graph
        ends = {n.name for n in graph.output_node().all_input_nodes}
        steps: list[CompiledStage | IslandStep] = []
        parts = cut(captured.graph)
        crossing = {name for part in parts if not _is_structure(part) for name in part.writes}
        with _tracing_modes():
            for position, part in reversed(list(enumerate(parts))):
                if isinstance(part, IslandCall):
                    steps.insert(0, IslandStep(part))
                else:
                    number = sum(isinstance(p, Stage) for p in parts[: position + 1])
                    watch = dump.stage(number, part, parts) if dump is not None else None
                    widths = save_rule.chosen[number - 1] if save_rule is not None else {}
                    stage = _compile(model, captured, part, policy, seed, ends, watch, bit_rule, widths, crossing)
                    if dump is not None:
                        dump.stages[number].plan = stage.plan
                    ends.update(part.reads[i] for i in inputs_behind_outputs(stage.joint))
                    steps.insert(0, stage)
        stages = [step for step in steps if isinstance(step, CompiledStage)]
        if any(stage.joint.training for stage in stages):
            check_nodes(policy, [d.node for s in stages for r in s.reports for d in r.decisions if d.action == FOUND])
        captured.guards.update()
        if dump is not None:
            dump.write(why, parts)
        names = tuple(n.name for n in graph.find_nodes(op="placeholder"))
        results = tuple(n.name for n in graph.output_node().args[0])  # type: ignore[union-attr]
        return cls(captured, tuple(steps), names, results, why, tuple(model.modules()), bit_rule, dump)

    def run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], run_step: RunStep | None = None) -> Any:
        """Run the model on a call and give its result the structure that the model's forward returns.

        Args:
            call: the call as the capture reads it.
            args, kwargs: the call as the user wrote it.
            run_step: runs a step in place of the step itself; it gets steps without CUDA graphs.
        """
        if run_step is None and self.dump is not None:
            run_step = self.dump.measured_step()
        values: dict[str, Any] = dict(zip(self.names, call.flat, strict=True))
        with calling(call.graphs) if self.captured.islands else nullcontext():
            for step in self.steps:
                if run_step is None:
                    step(values)
                else:
                    run_step(replace(step, graphed=None) if isinstance(step, CompiledStage) else step, values)
        return self.captured.outputs.unflatten([values[name] for name in self.results], args, kwargs)


@contextmanager
def _tracing_modes() -> Iterator[None]:
    """AOTAutograd runs outside inference mode; the capture already holds the casts of an active autocast."""
    grad = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad), autocast_off():
        yield


def _compile(
    model: nn.Module,
    captured: Captured,
    stage: Stage,
    policy: Policy,
    seed: SeedSource,
    ends: Set[str],
    watch: Watch | None,
    bit_rule: BitRule | None,
    widths: Mapping[str, tuple[int, str]],
    crossing: Set[str],
) -> CompiledStage:
    """Compile a stage.

    Args:
        ends: names of the values from which a model's output is reached without another primitive.
        widths: bits and reason by name of a saved tensor, where ``save_bits="auto"`` has chosen them.
        crossing: names of the values that stages and eager islands give one another.
    """
    try:
        joint = build_joint(stage.graph, stage.fakes)
    except LibraryError:
        raise
    except Exception as error:
        # Whatever torch cannot differentiate as a flat graph with symbolic sizes still runs eagerly.
        raise CaptureError(f"AOTAutograd failed on it with {type(error).__name__}: {error}") from error
    joint.model_outputs = frozenset(i for i, name in enumerate(stage.writes) if name in ends)
    joint.bit_rule, joint.saved_widths = bit_rule, widths
    reports = run_passes(joint, policy, watch)
    if FIND_MESSAGES not in policy.skip:
        inside = {node.name for node in stage.graph.graph.nodes}
        reports.insert(0, Report(FIND_MESSAGES, [d for d in captured.messages if d.node in inside]))
    halves = partition(joint)
    state = [p for p in joint.placeholders if p.kind in (PARAMETER, BUFFER)]
    inputs = [p for p in joint.placeholders if p.kind == INPUT]
    held = {s.name for s in halves.saved if s.held}
    executable = Executable(joint, halves, seed)
    if policy.remember_inputs:
        remembered = RememberedInputs(joint, halves.forward)
        executable.forward_half = remembered
        reports.append(remembered.report)
    return CompiledStage(
        joint=joint,
        reports=reports,
        saved=halves.saved,
        plan=(
            *plan_of(joint, halves.saved, policy.saves),
            *(given_to_backward(p.node) for p in inputs if stage.reads[p.index] in crossing and p.node.name in held),
            *(plan for report in reports for plan in report.plans),
        ),
        executable=executable,
        slots=tuple(_slot(model, captured.graph, p.name) for p in state),
        inputs=tuple(p.index for p in inputs),
        reads=stage.reads,
        writes=stage.writes,
        graphed=GraphedStage(executable, joint, len(state)) if policy.cuda_graph else None,
    )


def _is_structure(part: Stage | IslandCall) -> bool:
    return isinstance(part, IslandCall) and isinstance(part.island, StructureIsland)


def _slot(model: nn.Module, graph: fx.GraphModule, name: str) -> Slot:
    """The table that holds a parameter or buffer now and after it is replaced; constants live in the captured graph."""
    path, _, leaf = name.rpartition(".")
    for root in (model, graph):
        try:
            owner = root.get_submodule(path)
        except AttributeError:
            continue
        for table in (owner._parameters, owner._buffers):
            if leaf in table:
                return table, leaf
    raise KeyError(name)
