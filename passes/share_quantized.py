"""Quantize each tensor once."""

from __future__ import annotations

from collections import Counter

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import drop_unused, half, mutates, origin, pick, source
from gqc.passes.primitive import mark, marked, ops
from gqc.passes.report import KEPT, SHARED, Decision, Report
from gqc.policy import Policy

QUANTIZE = ops.quantize.default


def share_quantized(joint: JointGraph, policy: Policy) -> Report:
    """Let all primitives that read the same values read one int8 copy of them.

    Requires: :func:`quantize_operands`, which quantizes values before they are reshaped, transposed or copied.
    Does: merges the ``quantize`` nodes of one tensor. This joins siblings (the GEMMs of GraphSAGE), the forward with
        the backward (whose saved tensor is then the int8 copy) and the users of one gradient. An int8 copy of a
        parameter lives from the forward to the backward of one step.
    Legal because one scale a tensor stands for every element, whatever their order and the contracted axis. Refused
        where the tensor is updated in place between the two uses, and between primitives of different widths, whose
        scales differ: there is one copy a width.
    Ensures: no two ``quantize`` nodes of one width read the same values.
    """
    report = Report("share_quantized")
    first: dict[tuple[fx.Node, object], fx.Node] = {}
    for node in quantize_nodes(joint):
        values: fx.Node = node.args[0]  # type: ignore[assignment]
        shared = first.setdefault((values, _bits(node)), node)
        update = _update_between(values, shared, node)
        if update is not None:
            reason = f"not shared: {values.name} is updated in place by {update.name}"
            report.decisions.append(_decision(values, KEPT, reason))
            first[values, _bits(node)] = node
        elif shared is not node:
            for index in (0, 1):
                pick(node, index).replace_all_uses_with(pick(shared, index))
    drop_unused(joint.graph)
    copies = Counter(node.args[0] for node in quantize_nodes(joint))
    for node, users in _users(joint).items():
        values = node.args[0]  # type: ignore[assignment]
        reason = f"one int{_bits(node)} copy for {', '.join(users)}"
        if copies[values] > 1:
            report.decisions.append(_decision(values, SHARED, f"{reason}; other widths have copies of their own"))
        elif len(users) > 1:
            report.decisions.append(_decision(values, SHARED, reason))
    report.numbers["quantize nodes"] = len(quantize_nodes(joint))
    return report


def quantize_nodes(joint: JointGraph) -> list[fx.Node]:
    """The ``quantize`` nodes of a joint graph in graph order."""
    return list(joint.graph.find_nodes(op="call_function", target=QUANTIZE, sort=True))


def _bits(quantize: fx.Node) -> int:
    return quantize.args[4]  # type: ignore[return-value]


def _update_between(values: fx.Node, first: fx.Node, second: fx.Node) -> fx.Node | None:
    return next((u for u in values.users if mutates(u) and u.args[0] is values and first < u < second), None)


def _users(joint: JointGraph) -> dict[fx.Node, list[str]]:
    """The primitives that read each int8 copy."""
    users: dict[fx.Node, list[str]] = {node: [] for node in quantize_nodes(joint)}
    copies = {pick(node, 0): node for node in users}
    for primitive, _ in marked(joint.graph):
        for read in {source(n)[0] for n in primitive.all_input_nodes}:
            if read in copies:
                users[copies[read]].append(primitive.name)
    return users


def _decision(values: fx.Node, action: str, reason: str) -> Decision:
    primitive = mark(values)
    kind = primitive.kind if primitive is not None else "tensor"
    return Decision(values.name, origin(values).module, kind, half(values), action, reason)
