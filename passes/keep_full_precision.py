"""Decide which primitives stay in full precision."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.int8_form import refusal
from gqc.passes.nodes import FORWARD, example_numel, inputs_of_values, origin
from gqc.passes.output_layer import nearest_primitives, output_layer
from gqc.passes.primitive import EDGE_SOFTMAX, marked, operands
from gqc.passes.report import KEPT, Decision, Report
from gqc.policy import Policy


def keep_full_precision(joint: JointGraph, policy: Policy) -> Report:
    """Keep what int8 would harm or not speed up, with the reason.

    Requires: :func:`find_primitives`.
    Does: sets :attr:`Primitive.kept` for primitives

    1. without an int8 form, or whose operands are neither float32 nor bfloat16;
    2. that feed an edge softmax with no primitive between (unless ``attention_logits="int8"``), because an error of a
       logit becomes a factor of an attention weight, and their backward;
    3. of the output layer (with ``keep_output_layer``; Tango section 3.3, the layer before softmax), and their
       backward;
    4. whose largest operand has fewer than ``min_size`` elements at the example call.

    A backward primitive belongs to the forward primitive with the same recorded call.
    Ensures: every primitive with ``kept is None`` can be quantized. With ``bits=32`` all are kept.
    """
    report = Report("keep_full_precision")
    reasons: dict[fx.Node, str] = {}
    if policy.attention_logits == "fp32":
        reasons |= _attention_logits(joint)
    if policy.keep_output_layer:
        reasons = output_layer(joint) | reasons
    backward_reasons = {origin(n).id: f"backward of {n.name}, which is kept" for n in reasons if origin(n).id >= 0}
    for node, primitive in marked(joint.graph):
        linked = reasons.get(node) if primitive.half == FORWARD else backward_reasons.get(origin(node).id)
        kept = refusal(node) or linked or _too_small(node, policy)
        if kept is None and policy.bits == 32:
            kept = "Policy.bits=32"
        if kept is not None:
            node.meta["gqc"] = replace(primitive, kept=kept)
            decision = Decision(node.name, origin(node).module, primitive.kind, primitive.half, KEPT, kept)
            report.decisions.append(decision)
    return report


def _attention_logits(joint: JointGraph) -> dict[fx.Node, str]:
    reasons = {}
    for softmax, primitive in marked(joint.graph):
        if primitive.kind == EDGE_SOFTMAX and primitive.half == FORWARD:
            for node in nearest_primitives(inputs_of_values(softmax)):
                reasons[node] = f"attention logits: it feeds {softmax.name}"
    return reasons


def _too_small(node: fx.Node, policy: Policy) -> str | None:
    largest = max(example_numel(n.meta["val"]) for n in operands(node))
    if largest >= policy.min_size:
        return None
    return f"its largest operand has {largest} elements, Policy.min_size={policy.min_size}"
