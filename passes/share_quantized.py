"""Quantize each tensor once."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import FORWARD, aten, call, drop_unused, half, mutates, origin, pick, source
from gqc.passes.primitive import mark, marked, ops
from gqc.passes.quantize_operands import absmax_of
from gqc.passes.report import KEPT, SHARED, Decision, Report
from gqc.policy import Policy

QUANTIZE = ops.quantize.default
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def share_quantized(joint: JointGraph, policy: Policy) -> Report:
    """Let all primitives that read the same values read one int8 copy of them.

    Requires: :func:`quantize_operands`.
    Does: moves every ``quantize`` to where its values are first produced, before reshapes, transposes, detach and
        clone, which are then applied to the int8 values, and merges those of one tensor. This joins siblings (the
        GEMMs of GraphSAGE), the forward with the backward (whose saved tensor is then the int8 copy) and the users of
        one gradient. An int8 copy of a parameter lives from the forward to the backward of one step.
    Legal because one scale a tensor stands for every element, whatever their order and the contracted axis. Refused
        where the tensor is updated in place before the second use.
    Ensures: no two ``quantize`` nodes read the same values.
    """
    report = Report("share_quantized")
    before = list(joint.graph.find_nodes(op="call_function", target=QUANTIZE))
    first: dict[fx.Node, fx.Node] = {}
    replayed: dict[tuple[fx.Node, fx.Node], fx.Node] = {}
    for node in before:
        values, path = source(node.args[0])  # type: ignore[arg-type]
        update = _update_before(values, node)
        if update is not None:
            reason = f"not shared: {values.name} is updated in place by {update.name}"
            report.decisions.append(_decision(values, KEPT, reason))
            continue
        if values not in first:
            first[values] = _quantize_where_produced(joint, values, node)
        int8 = pick(first[values], 0)
        for step in path:
            if (int8, step) not in replayed:
                with joint.graph.inserting_before(node):
                    replayed[int8, step] = _replay(step, int8)
            int8 = replayed[int8, step]
        pick(node, 0).replace_all_uses_with(int8)
        pick(node, 1).replace_all_uses_with(pick(first[values], 1))
    drop_unused(joint.graph)
    _report_users(joint, report)
    report.numbers["quantize nodes"] = len(quantize_nodes(joint))
    return report


def quantize_nodes(joint: JointGraph) -> list[fx.Node]:
    """The ``quantize`` nodes of a joint graph in graph order."""
    return list(joint.graph.find_nodes(op="call_function", target=QUANTIZE, sort=True))


def _update_before(values: fx.Node, node: fx.Node) -> fx.Node | None:
    """The in-place update of ``values`` that runs before ``node``, if there is one."""
    return next((u for u in values.users if mutates(u) and u.args[0] is values and u < node), None)


def _quantize_where_produced(joint: JointGraph, values: fx.Node, node: fx.Node) -> fx.Node:
    absmax = absmax_of(values)
    produced = max((n for n in (values, absmax) if n is not None))
    place = next(n for n in joint.graph.nodes if n.op != "placeholder") if produced.op == "placeholder" else produced.next
    with joint.graph.inserting_before(place):
        quantized = call(QUANTIZE, (values, absmax, *node.args[2:]), node)
    if half(values) == FORWARD:
        quantized.meta["partitioner_tag"] = "is_forward"
    return quantized


def _replay(step: fx.Node, int8: fx.Node) -> fx.Node:
    # The int8 copy is contiguous where its source may not be, so what was a view of the source may need a copy here.
    target = aten.reshape.default if step.target in _VIEWS else step.target
    return call(target, (int8, *step.args[1:]), step)  # type: ignore[arg-type]


def _report_users(joint: JointGraph, report: Report) -> None:
    users: dict[fx.Node, list[str]] = {node: [] for node in quantize_nodes(joint)}
    for primitive, _ in marked(joint.graph):
        for read in primitive.all_input_nodes:
            picked, _ = source(read)
            origin_of_read = picked.args[0] if picked.args else None
            if origin_of_read in users and picked is pick(origin_of_read, 0):  # type: ignore[arg-type]
                users[origin_of_read].append(primitive.name)  # type: ignore[index]
    for node, names in users.items():
        if len(names) > 1:
            report.decisions.append(_decision(node.args[0], SHARED, f"one int8 copy for {', '.join(names)}"))  # type: ignore[arg-type]


def _decision(values: fx.Node, action: str, reason: str) -> Decision:
    primitive = mark(values)
    kind = primitive.kind if primitive is not None else "tensor"
    return Decision(values.name, origin(values).module, kind, half(values), action, reason)
