"""Replace primitives by their int8 forms."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.int8_form import FORMS
from gqc.passes.nodes import call, drop_unused, origin, pick, replay, source
from gqc.passes.primitive import marked, ops
from gqc.passes.report import QUANTIZED, Decision, Report
from gqc.policy import Policy

_WITH_ABSMAX = (ops.qgemm.default, ops.qspmm.default)


def quantize_operands(joint: JointGraph, policy: Policy) -> Report:
    """Put a ``quantize`` on every operand of every primitive that is not kept, and call its int8 form.

    Requires: :func:`keep_full_precision` and :func:`choose_bits`.
    Does: quantizes the values of an operand where they are first held, before transposes (the int8 GEMM takes flags
        instead), reshapes and copies. The absmax of a quantized primitive's output comes from its epilogue. Every
        ``quantize`` has a number of its own, which selects its stream of random bits.
    Ensures: a primitive either has ``kept`` set or is an int8 form; the mark is on the int8 form.
    """
    report = Report("quantize_operands")
    quantizer = Quantizer(joint, policy)
    for node, primitive in marked(joint.graph):
        if primitive.kept is not None:
            continue
        form = FORMS[node.target]  # type: ignore[index]
        with joint.graph.inserting_before(node):
            pairs = {operand: quantizer(operand, node, primitive.bits) for operand in form.operands(node)}
            in_int8 = call(form.target, form.arguments(node, pairs.__getitem__), node, f"{node.name}_int8")
        in_int8.meta["gqc"] = primitive
        several = isinstance(in_int8.meta["val"], tuple) and isinstance(node.meta["val"], Tensor)
        name, result = node.name, pick(in_int8, 0, f"{node.name}_out") if several else in_int8
        node.replace_all_uses_with(result)
        joint.graph.erase_node(node)
        operands = ", ".join(operand.name for operand in pairs)
        reason = f"reads {operands} in int{primitive.bits}"
        report.decisions.append(
            Decision(name, origin(result).module, primitive.kind, primitive.half, QUANTIZED, reason)
        )
    drop_unused(joint.graph)
    report.numbers["quantize nodes"] = quantizer.count
    return report


@dataclass
class Quantizer:
    """Adds ``quantize`` nodes to a joint graph; ``count`` is how many, and the number of the next one."""

    joint: JointGraph
    policy: Policy
    count: int = 0

    def __call__(self, x: fx.Node, like: fx.Node, bits: int) -> tuple[fx.Node, fx.Node]:
        """Quantize ``x`` to 2 to 8 bits at the graph's insertion point.

        Returns:
            The values, in int8 and shaped as ``x``, and the scale.
        """
        # Without a backward there is no gradient to keep unbiased, and nearest rounding has the smaller error.
        stochastic = self.policy.rounding == "stochastic" and self.joint.training
        values, path = source(x)
        seed = self.joint.seed() if stochastic else None
        arguments = (values, _absmax_of(values), seed, self.count, bits, stochastic)
        quantized = call(ops.quantize.default, arguments, like, f"{values.name}_quantized")
        self.count += 1
        int8, scale = pick(quantized, 0, f"{values.name}_int8"), pick(quantized, 1, f"{values.name}_scale")
        for step in path:
            int8 = replay(step, int8, f"{step.name}_int8")
        return int8, scale


def _absmax_of(values: fx.Node) -> fx.Node | None:
    """The absmax that an int8 primitive gives beside its output ``values``; after an activation it is only a bound."""
    produced = values.args[0] if values.op == "call_function" and values.args else None
    if isinstance(produced, fx.Node) and produced.target in _WITH_ABSMAX and values is pick(produced, 0):
        return pick(produced, 1, f"{values.name}_absmax")
    return None
