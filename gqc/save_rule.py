"""How many bits each saved tensor has under ``save_bits="auto"``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, fx, nn

from gqc.capture import Call, Captured, calling
from gqc.capture.islands import StructureIsland
from gqc.errors import PolicyError
from gqc.execute import Executable
from gqc.passes.choose_bits import BitRule
from gqc.passes.measure_saved import SAVED_BYTES
from gqc.passes.saved_plan import PLAN, WIDTHS
from gqc.policy import Policy
from gqc.save_bits import SAVED_WIDTHS, SaveBits
from gqc.seed import SeedSource
from gqc.text import bytes_text
from gqc.trial import undone
from gqc.variant import CompiledStage, IslandStep, Variant

_MEASURED = 2
"""Bits in which the error of a tensor is measured."""

_OVERFLOWS = 1e300
"""Variance of a tensor with which gradients overflow: it comes before all others."""

_LEVELS = 2 ** max(SAVED_WIDTHS) - 1


@dataclass(frozen=True)
class Candidate:
    """A tensor whose width is to be chosen.

    Attributes:
        stage: number of the stage that saves it.
        name: its node in the joint graph.
        widths: bytes that it takes by bits; more bits are more bytes.
        variance: of all gradients together, if it alone is kept in 2 bits; ``None`` if it was not measured.
    """

    stage: int
    name: str
    widths: Mapping[int, int]
    variance: float | None = None

    def variance_at(self, bits: int) -> float:
        """Variance of the gradients in another width: that of stochastic rounding falls with the square of the bins."""
        measured = 1.0 if self.variance is None else self.variance
        return measured * ((2**_MEASURED - 1) / (2**bits - 1)) ** 2


@dataclass(frozen=True)
class SaveRule:
    """The widths that were chosen.

    Attributes:
        chosen: for each stage, bits and reason by name of a tensor.
    """

    chosen: tuple[Mapping[str, tuple[int, str]], ...]


def solve(candidates: Sequence[Candidate], budget: int) -> list[int]:
    """Widths of least summed variance that take at most ``budget`` bytes, as far as a greedy choice finds them.

    As in ActNN (section 4.2), but from below: all start with their fewest bits, and what saves the most variance for
    a byte is widened as long as something fits. As the gain of a step falls with the width, it is the optimum of the
    relaxed problem up to the last steps.

    Raises:
        PolicyError: the fewest bits take more.
    """
    widths = [sorted(c.widths) for c in candidates]
    at = [0] * len(candidates)
    left = budget - sum(c.widths[w[0]] for c, w in zip(candidates, widths, strict=True))
    if left < 0:
        raise PolicyError(f"the fewest bits take {bytes_text(budget - left)}")
    while True:
        best, most = -1, -1.0
        for i, (candidate, options) in enumerate(zip(candidates, widths, strict=True)):
            if at[i] + 1 == len(options):
                continue
            now, wider = options[at[i]], options[at[i] + 1]
            cost = candidate.widths[wider] - candidate.widths[now]
            gain = (candidate.variance_at(now) - candidate.variance_at(wider)) / max(cost, 1)
            if cost <= left and gain > most:
                best, most = i, gain
        if best < 0:
            return [options[i] for options, i in zip(widths, at, strict=True)]
        left -= candidates[best].widths[widths[best][at[best] + 1]] - candidates[best].widths[widths[best][at[best]]]
        at[best] += 1


def choose(
    model: nn.Module, captured: Captured, call: Call, policy: Policy, seed: SeedSource, bit_rule: BitRule | None
) -> SaveRule:
    """Measure on a call how much each saved tensor matters, and share the budget.

    The model is compiled with 8 bits for each tensor and its forward runs once. Then, for one tensor after the other,
    the backward runs twice with that tensor rounded to 2 bits, by different random numbers, and all others as they
    are: half the squared difference of the gradients estimates the variance that the tensor causes (ActNN, section
    4.1, which takes it for a layer). It holds what TinyKG's bound ``d R^2 / (4 B^2)`` says about the tensor and what
    the backward makes of it, so it is multiplied by ``9 / B^2`` for ``B`` bins and not by a bound. The loss is not
    known on the first call, so each output receives a gradient drawn from N(0, 1), always the same.

    A model with eager islands is not run twice: then all elements count alike. Parameters, buffers, arguments and
    generators are left as they were.

    Raises:
        PolicyError: the fewest bits take more than the budget.
    """
    saves = policy.saves
    assert saves is not None
    eight = replace(policy, save_bits=replace(saves, bits=max(SAVED_WIDTHS), budget=None), cuda_graph=False)
    probe = Variant.build(model, captured, eight, seed, "save_bits='auto' is measured", bit_rule=bit_rule)
    stages = [step for step in probe.steps if isinstance(step, CompiledStage)]
    packed = [_packed(stage) for stage in stages]
    candidates = [
        Candidate(number, node.meta[PLAN].name, node.meta[WIDTHS])
        for number, nodes in enumerate(packed)
        for node in nodes
    ]
    eager = [s for s in probe.steps if isinstance(s, IslandStep) and not isinstance(s.call.island, StructureIsland)]
    if candidates and not eager:
        with undone(model, seed), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            variances = _measured(probe, packed, call, bool(captured.guards.memory.written))
        candidates = [replace(c, variance=v) for c, v in zip(candidates, variances, strict=True)]
    budget = _budget(saves, stages, candidates)
    fixed = sum(s.nbytes() for stage in stages for s in stage.saved) - sum(c.widths[8] for c in candidates)
    try:
        bits = solve(candidates, budget - fixed)
    except PolicyError as error:
        least = fixed + sum(min(c.widths.values()) for c in candidates)
        raise PolicyError(
            f"SaveBits.budget={saves.budget!r} is {bytes_text(budget)}: {bytes_text(fixed)} are saved as they are, and "
            f"{error}: give {least} or more bytes, or None"
        ) from None
    return SaveRule(tuple(_stage(n, candidates, bits, budget) for n in range(len(stages))))


def _stage(
    number: int, candidates: Sequence[Candidate], bits: Sequence[int], budget: int
) -> dict[str, tuple[int, str]]:
    total = sum(c.variance_at(_MEASURED) for c in candidates) or 1.0
    chosen = {}
    for candidate, width in zip(candidates, bits, strict=True):
        if candidate.stage != number:
            continue
        why = f"save_bits='auto', {bytes_text(budget)} in all"
        if candidate.variance is not None:
            why += f": {candidate.variance / total:.1%} of the gradients' variance if all had {_MEASURED} bits"
        else:
            why += ": not measured, because an eager island would run twice"
        chosen[candidate.name] = width, why
    return chosen


def _budget(saves: SaveBits, stages: Sequence[CompiledStage], candidates: Sequence[Candidate]) -> int:
    """Bytes for all that is saved; by default what 2 bits take, or more where a tensor needs more."""
    if isinstance(saves.budget, int):
        return saves.budget
    if saves.budget is not None:
        return int(saves.budget * sum(r.numbers.get(SAVED_BYTES, 0) for s in stages for r in s.reports))
    saved = sum(s.nbytes() for stage in stages for s in stage.saved)
    return saved - sum(c.widths[8] - c.widths[max(_MEASURED, min(c.widths))] for c in candidates)


def _packed(stage: CompiledStage) -> list[fx.Node]:
    """The packed values among what a stage saves."""
    nodes = {node.name: node for node in stage.joint.graph.nodes}
    return [nodes[s.name] for s in stage.saved if WIDTHS in nodes[s.name].meta]


def _measured(probe: Variant, packed: Sequence[Sequence[fx.Node]], call: Call, clone: bool) -> list[float]:
    """The variance that each tensor causes."""
    values: dict[str, Any] = dict(zip(probe.names, call.flat, strict=True))
    if clone:
        values = {name: value.clone() for name, value in values.items()}
    found: list[float] = []
    nodes = iter(packed)
    with calling(call.graphs) if probe.captured.islands else nullcontext():
        for step in probe.steps:
            if isinstance(step, IslandStep):
                step(values)
                continue
            run = step.executable
            arguments = step.arguments(values)
            if run.seed_device is not None:
                arguments.append(run.seed(run.seed_device))
            results = run.forward(arguments)
            values.update(zip(step.writes, results, strict=False))
            names = [s.name for s in step.saved]
            at = [names.index(node.name) for node in next(nodes)]
            if run.backward_half is not None:
                found += _variances(run, list(results), at)
    return found


def _variances(run: Executable, results: list[Any], at: Sequence[int]) -> list[float]:
    outputs, saved = results[: run.num_outputs], results[run.num_outputs :]
    generator = torch.Generator().manual_seed(0)
    tangents = [torch.randn(outputs[i].shape, generator=generator).to(outputs[i]) for i in run.tangents]

    def gradients(rounded: Tensor, place: int) -> list[Tensor]:
        computed = run.backward([rounded if i == place else s for i, s in enumerate(saved)], tangents)
        return [g for g in computed if g is not None]

    found = []
    for place in at:
        first, second = (gradients(_rounded(saved[place], generator), place) for _ in range(2))
        squares = sum((a.double() - b.double()).square().sum().item() for a, b in zip(first, second, strict=True))
        found.append(squares / 2 if isfinite(squares) else _OVERFLOWS)
    return found


def _rounded(packed: Tensor, generator: torch.Generator) -> Tensor:
    """Values of 8 bits rounded stochastically to the levels that 2 bits have, which are among those of 8 bits."""
    step = _LEVELS // (2**_MEASURED - 1)
    noise = torch.rand(packed.shape, generator=generator).to(packed.device)
    return ((packed / step + noise).floor() * step).to(packed.dtype)
