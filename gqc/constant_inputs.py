"""What a forward computes from inputs alone, node features for example, computed once while these stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from gqc.joint import INPUT, SEED, JointGraph
from gqc.passes.nodes import by_name, half, is_random, is_size, is_updated, mutates, origin
from gqc.passes.primitive import ops
from gqc.passes.report import MOVED, Decision, Report
from gqc.runtime.memory import ByIdentity

_DROPS = (ops.dropout.default,)
_NAME = "remember_inputs"


class RememberedInputs:
    """A forward half that remembers what depends on inputs alone.

    A result holds while the inputs are the same tensors in the same version (as :class:`gqc.runtime.memory.ByIdentity`
    says), so its stochastic rounding is drawn once for them. Dropout is drawn at each call.

    Attributes:
        report: what is remembered.
    """

    def __init__(self, joint: JointGraph, forward: fx.GraphModule) -> None:
        graph = forward.graph
        placeholders = graph.find_nodes(op="placeholder")
        constant, self._seed = _constant_placeholders(joint, placeholders)
        found = _depend_on(
            graph, {placeholders[i] for i in constant}, None if self._seed is None else placeholders[self._seed]
        )
        results = [n for n in found if any(user not in found for user in n.users) and not is_size(n)]
        self.report = Report(_NAME, [_decision(n) for n in results])
        self._constant = constant
        self._given = torch.empty(0)
        seeded = [*constant, *([] if self._seed is None else [self._seed])]
        self._first = _part(forward, [placeholders[i] for i in seeded], list(found), results)
        kept = [n for n in graph.nodes if n not in found and n.op not in ("placeholder", "output")]
        sizes = [n for n in found if is_size(n)]
        outputs = graph.output_node().args[0]
        self._rest = _part(forward, [*placeholders, *results], sorted([*sizes, *kept]), outputs)
        self._remembered = ByIdentity(self._compute)

    def __call__(self, *values: Any) -> Sequence[Any]:
        if self._seed is not None:
            self._given = values[self._seed]
        return self._rest(*values, *self._remembered(*[values[i] for i in self._constant]))

    def _compute(self, *inputs: Any) -> Sequence[Any]:
        return self._first(*inputs, *([] if self._seed is None else [self._given]))


def _constant_placeholders(joint: JointGraph, placeholders: Sequence[fx.Node]) -> tuple[list[int], int | None]:
    """Places of the inputs that get no gradient and are not updated, and of the seed."""
    position = {node.name: i for i, node in enumerate(placeholders)}
    gradients = dict(zip(joint.gradient_of, joint.gradients, strict=True))
    constant, seed = [], None
    for p in joint.placeholders:
        at = position.get(p.node.name)
        if p.kind == SEED:
            seed = at
        elif p.kind == INPUT and at is not None and gradients.get(p.node) is None and not is_updated(placeholders[at]):
            constant.append(at)
    return constant, seed


def _depend_on(graph: fx.Graph, constant: set[fx.Node], seed: fx.Node | None) -> dict[fx.Node, None]:
    """The calls, in order, that depend on given nodes and the seed only, and on the seed for rounding only."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op != "call_function" or mutates(node) or is_random(node) or is_updated(node) or _drops(node):
            continue
        read = node.all_input_nodes
        if read and all(n in found or n in constant or n is seed for n in read) and read != [seed]:
            found[node] = None
    return found


def _drops(node: fx.Node) -> bool:
    if node.target in _DROPS:
        return True
    return node.target is ops.pointwise.default and "keep(" in by_name(node)["program"]


def _part(
    whole: fx.GraphModule, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Any
) -> Callable[..., Sequence[Any]]:
    """Some nodes of a graph as a function of others."""
    graph, copied = fx.Graph(), {}
    for node in inputs:
        copied[node] = graph.placeholder(node.name)
    for node in nodes:
        if node not in copied:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(fx.map_arg(outputs, copied.__getitem__))
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or mutates(n))
    return fx.GraphModule(whole, graph).forward


def _decision(node: fx.Node) -> Decision:
    shape = list(node.meta["val"].shape) if isinstance(node.meta.get("val"), Tensor) else []
    reason = f"{shape} depends on inputs alone: computed once while they stay the same"
    return Decision(node.name, origin(node).module, "tensor", half(node), MOVED, reason)
