"""Split the joint graph into a forward and a backward half that run apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from gqc.joint import TANGENT, JointGraph
from gqc.passes.nodes import mutates, needed_for
from gqc.passes.saved_values import SavedTensor, choose_saved, describe, tangent_dependent


@dataclass(frozen=True)
class Halves:
    """The two modules that run in place of a joint graph.

    Attributes:
        forward: takes the joint graph's placeholders but the tangents; gives the outputs, then the saved values.
        backward: takes the saved values, then the tangents; gives one gradient or ``None`` a placeholder of
            ``forward``. ``None`` without training.
        saved: what is saved, in order.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    saved: list[SavedTensor]


def partition(joint: JointGraph) -> Halves:
    """Split a joint graph where the fewest bytes cross, computing nothing expensive or random twice.

    Requires: the output of the last pass.
    Does: see :func:`gqc.passes.saved_values.choose_saved`. In-place updates of buffers run in the forward.
    Ensures: the halves together compute what the joint graph computes.
    """
    late = tangent_dependent(joint)
    primals = [p.node for p in joint.placeholders if p.kind != TANGENT]
    saved = choose_saved(joint)
    tangents = [p.node for p in joint.placeholders if p.kind == TANGENT]
    updates = [n for n in joint.graph.nodes if mutates(n)]
    forward = _extract(joint, primals, [*joint.forward_outputs, *saved], [n for n in updates if n not in late])
    backward = None
    if joint.training:
        of = dict(zip(joint.gradient_of, joint.gradients, strict=True))
        updates = [n for n in updates if n in late]
        backward = _extract(joint, [*saved, *tangents], [of.get(p) for p in primals], updates)
    return Halves(forward, backward, [describe(n) for n in saved])


def _extract(
    joint: JointGraph, inputs: Sequence[fx.Node], outputs: Sequence[Any], updates: Iterable[fx.Node]
) -> fx.GraphModule:
    """A module from ``inputs`` to ``outputs`` with the given in-place updates, in the order of the joint graph."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    needed = needed_for((*outputs, *updates), copies)
    for node in joint.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] if isinstance(n, fx.Node) else n for n in outputs))
    graph.lint()
    return fx.GraphModule(joint.module, graph)
