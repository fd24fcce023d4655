"""What a pass leaves as it is: the arguments of a step and its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from gqc.joint import SEED, JointGraph


@dataclass(frozen=True)
class Result:
    """A result of a step.

    Attributes:
        meaning: ``"output 0"`` or ``"the gradient of conv1_weight"``.
        dtype, rank: of the tensor; ``None`` where there is none.
    """

    meaning: str
    dtype: torch.dtype | None = None
    rank: int | None = None

    def __str__(self) -> str:
        return "None" if self.dtype is None else f"a tensor of {self.dtype} with {self.rank} axes"


@dataclass(frozen=True)
class Interface:
    """Arguments and results of a step, by which the compiled model calls its halves.

    Attributes:
        arguments: name of the node, kind, name and position of each placeholder; a seed, which passes may add, apart.
        results: outputs of the forward, then gradients.
        num_results: how many there are.
    """

    arguments: tuple[tuple[str, str, str, int], ...]
    results: tuple[Result, ...]
    num_results: int

    @classmethod
    def of(cls, joint: JointGraph) -> Interface:
        placeholders = [p for p in joint.placeholders if p.kind != SEED]
        results = [_result(f"output {i}", node) for i, node in enumerate(joint.forward_outputs)]
        gradients = zip(joint.gradient_of, joint.gradients, strict=False)
        results += [_result(f"the gradient of {of.name}", node) for of, node in gradients]
        arguments = tuple((p.node.name, p.kind, p.name, p.index) for p in placeholders)
        return cls(arguments, tuple(results), len(joint.forward_outputs) + len(joint.gradients))

    def wrong_in(self, joint: JointGraph) -> Iterator[str]:
        """What is wrong with the arguments and results of a joint graph that had this interface before a pass."""
        listed = [p.node.name for p in joint.placeholders]
        placeholders = [n.name for n in joint.graph.find_nodes(op="placeholder")]
        if listed != placeholders:
            yield f"joint.placeholders lists {_names(listed)}, and the graph has {_names(placeholders)} in this order"
        now = Interface.of(joint)
        if now.arguments != self.arguments and listed == placeholders:
            names = [", ".join(name for name, *_ in arguments) for arguments in (now.arguments, self.arguments)]
            yield f"the arguments of the step are {names[0]} instead of {names[1]}, or of another meaning"
        if now.num_results != self.num_results:
            yield f"the step gives {now.num_results} results instead of {self.num_results}"
        for result, before in zip(now.results, self.results, strict=False):
            if result != before:
                yield f"{before.meaning} is {result} instead of {before}"


def _result(meaning: str, node: fx.Node | None) -> Result:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return Result(meaning, value.dtype, value.dim()) if isinstance(value, Tensor) else Result(meaning)


def _names(names: list[str]) -> str:
    return ", ".join(names) or "nothing"
