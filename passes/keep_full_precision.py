"""Decide which primitives stay in full precision."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import fx

from gqc.cost import machine
from gqc.joint import JointGraph
from gqc.passes.estimate import estimates
from gqc.passes.int8_form import refusal
from gqc.passes.nodes import FORWARD, aten, example_numel, half, inputs_of_values, origin
from gqc.passes.output_layer import nearest_primitives, output_layer
from gqc.passes.primitive import EDGE_SOFTMAX, mark, marked, operands
from gqc.passes.report import KEPT, Decision, Report
from gqc.passes.user_keep import by_name, by_origin
from gqc.policy import Policy

_SOFTMAX = (aten._softmax.default, aten._log_softmax.default)
_LEAST_ELSEWHERE = 4096
"""Elements of the largest operand below which a primitive on another device than a CPU is too small."""
_NORM = re.compile(r"\w*Norm(\dd)?")


def keep_full_precision(joint: JointGraph, policy: Policy) -> Report:
    """Keep what int8 would harm or not speed up, with the reason.

    Requires: :func:`find_primitives`.
    Does: sets :attr:`Primitive.kept` for primitives

    1. without an int8 form, or whose operands are not float32, bfloat16 or float16;
    2. that ``Policy.keep`` names, and their backward unless it names a single node;
    3. that feed an edge softmax, or a softmax that primitives follow, with no primitive between (unless
       ``attention_logits="int8"``), because an error of a logit becomes a factor of an attention weight, and their
       backward;
    4. of the output layer (with ``keep_output_layer``; Tango section 3.3, the layer before softmax), and their
       backward. It is found from the outputs, so a softmax or a loss computed in the model changes nothing;
    5. that a normalization layer runs, whose statistics an error would shift for all rows, and their backward. What
       feeds a norm is quantized: it divides by a deviation that has the same error, and amplifies none;
    6. whose largest operand has fewer than ``min_size`` elements at the example call or, without ``min_size``, that
       int8 is estimated to make twice as slow (:mod:`gqc.passes.estimate`, ``Policy.costs``).

    A backward primitive belongs to the forward primitive with the same recorded call. Softmax, norms, activations and
    sums with a bias are no primitives and always run in full precision.
    Ensures: every primitive with ``kept is None`` can be quantized. With ``bits=32`` all are kept.
    """
    report = Report("keep_full_precision")
    reasons: dict[fx.Node, str] = {}
    if policy.keep_output_layer:
        reasons |= output_layer(joint)
    if policy.attention_logits == "fp32":
        reasons |= _attention_logits(joint)
    for node, primitive in marked(joint.graph):
        named = by_origin(policy, node, primitive) or _in_norm(node)
        if named is not None and primitive.half == FORWARD:
            reasons[node] = named
    backward_reasons = {origin(n).id: f"backward of {n.name}, which is kept" for n in reasons if origin(n).id >= 0}
    why: dict[fx.Node, str] = {}
    for node, primitive in marked(joint.graph):
        linked = reasons.get(node) if primitive.half == FORWARD else backward_reasons.get(origin(node).id)
        kept = refusal(node) or by_name(policy, node) or linked or by_origin(policy, node, primitive)
        if kept is None and policy.bits == 32:
            kept = "Policy.bits=32"
        if kept is not None:
            why[node] = kept
    why |= _too_small([node for node, _ in marked(joint.graph) if node not in why], policy)
    for node, primitive in marked(joint.graph):
        if (kept := why.get(node)) is not None:
            node.meta["gqc"] = replace(primitive, kept=kept)
            decision = Decision(node.name, origin(node).module, primitive.kind, primitive.half, KEPT, kept)
            report.decisions.append(decision)
    return report


def _attention_logits(joint: JointGraph) -> dict[fx.Node, str]:
    reasons = {}
    for softmax in joint.graph.nodes:
        primitive = mark(softmax)
        is_edge_softmax = primitive is not None and primitive.kind == EDGE_SOFTMAX
        if half(softmax) == FORWARD and (is_edge_softmax or (softmax.target in _SOFTMAX and _feeds_primitive(softmax))):
            for node in nearest_primitives(inputs_of_values(softmax)):
                reasons[node] = f"attention logits: it feeds {softmax.name}"
    return reasons


def _feeds_primitive(node: fx.Node) -> bool:
    """Whether a primitive of the forward computes with what follows from a node."""
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in seen and half(user) == FORWARD:
                if mark(user) is not None:
                    return True
                seen.add(user)
                stack.append(user)
    return False


def _in_norm(node: fx.Node) -> str | None:
    kind = origin(node).type
    return f"normalization: {kind} runs in full precision" if _NORM.fullmatch(kind) else None


def _too_small(nodes: list[fx.Node], policy: Policy) -> dict[fx.Node, str]:
    """Primitives on so few elements that int8 is slower, with the reason."""
    on_cpu = [n for n in nodes if policy.min_size is None and operands(n)[0].meta["val"].device.type == "cpu"]
    reasons = {}
    for node in nodes:
        largest = max(example_numel(n.meta["val"]) for n in operands(node))
        least = policy.min_size if policy.min_size is not None else _LEAST_ELSEWHERE
        if node not in on_cpu and largest < least:
            limit = f"Policy.min_size={least}" if policy.min_size is not None else f"fewer than {least}"
            reasons[node] = f"its largest operand has {largest} elements, {limit}"
    if on_cpu:
        for node, time in estimates(on_cpu, policy.costs or machine.costs()).items():
            if time.loses():
                dtype = str(operands(node)[0].meta["val"].dtype).removeprefix("torch.")
                reasons[node] = f"int8 would take {time.int8:.3g} us, {dtype} {time.full:.3g} us"
    return reasons
