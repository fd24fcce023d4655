"""Replace primitives by their int8 forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.int8_form import FORMS, INT4_FORMS, Int4Form, Int8Form
from gqc.passes.nodes import call, drop_unused, origin, pick, replay, same_rows, size, source
from gqc.passes.primitive import MOST_PACKED_BITS, marked, ops
from gqc.passes.report import QUANTIZED, Decision, Report
from gqc.policy import Policy

QUANTIZE = ops.quantize.default
_WITH_ABSMAX = (
    *(ops.qgemm.default, ops.qspmm.default, ops.qgemm_int4.default, ops.qspmm_int4.default),
    *(ops.qtyped_spmm.default, ops.qtyped_spmm_bwd_b.default),
)


def quantize_operands(joint: JointGraph, policy: Policy) -> Report:
    """Put a ``quantize`` on every operand of every primitive that is not kept, and call its int8 form.

    Requires: :func:`keep_full_precision` and :func:`choose_bits`.
    Does: quantizes the values of an operand where they are first held, before transposes (the int8 GEMM takes flags
        instead), reshapes and copies. The absmax of a quantized primitive's output comes from its epilogue. Every
        ``quantize`` has a number of its own, which selects its stream of random bits.
        Values of at most 4 bits are packed two a byte as they are quantized. A primitive with a packed form reads them
        so, if a row of its operand is a row of what was quantized; the others read them unpacked. So a tensor that
        both kinds read is quantized once.
    Ensures: a primitive either has ``kept`` set or is an int8 form; the mark is on the int8 form.
    """
    report = Report("quantize_operands")
    quantizer = Quantizer(joint, policy)
    for node, primitive in marked(joint.graph):
        if primitive.kept is not None:
            continue
        read = FORMS[node.target].operands(node)  # type: ignore[index]
        form = _form(node, read, primitive.bits)
        with joint.graph.inserting_before(node):
            if isinstance(form, Int4Form):
                packed = {operand: quantizer.packed(operand, node, primitive.bits) for operand in read}
                arguments = form.arguments(node, packed.__getitem__)
            else:
                pairs = {operand: quantizer(operand, node, primitive.bits) for operand in read}
                arguments = form.arguments(node, pairs.__getitem__)
            in_int8 = call(form.target, arguments, node, f"{node.name}_int8")
        in_int8.meta["gqc"] = primitive
        several = isinstance(in_int8.meta["val"], tuple) and isinstance(node.meta["val"], Tensor)
        name, result = node.name, pick(in_int8, 0, f"{node.name}_out") if several else in_int8
        node.replace_all_uses_with(result)
        joint.graph.erase_node(node)
        operands = ", ".join(operand.name for operand in dict.fromkeys(read))
        reason = f"reads {operands} in int{primitive.bits}"
        report.decisions.append(
            Decision(name, origin(result).module, primitive.kind, primitive.half, QUANTIZED, reason)
        )
    drop_unused(joint.graph)
    report.numbers["quantize nodes"] = quantizer.count
    return report


def _form(node: fx.Node, read: list[fx.Node], bits: int) -> Int8Form | Int4Form:
    if bits <= MOST_PACKED_BITS and all(map(same_rows, read)):
        return INT4_FORMS.get(node.target) or FORMS[node.target]  # type: ignore[arg-type,index]
    return FORMS[node.target]  # type: ignore[index]


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
        values, path = source(x)
        int8, scale = self._quantize(values, like, bits)
        if bits <= MOST_PACKED_BITS:
            int8 = call(ops.unpack_int4.default, (int8, _features(values)), like, f"{values.name}_int8")
        for step in path:
            int8 = replay(step, int8, f"{step.name}_int8")
        return int8, scale

    def packed(self, x: fx.Node, like: fx.Node, bits: int) -> tuple[fx.Node, fx.Node, list[Any]]:
        """Quantize ``x``, whose rows are those of what first held its values, to at most 4 bits.

        Returns:
            The packed values, the scale, and the shape of a row of ``x``.
        """
        return (*self._quantize(source(x)[0], like, bits), _features(x))

    def _quantize(self, values: fx.Node, like: fx.Node, bits: int) -> tuple[fx.Node, fx.Node]:
        # Without a backward there is no gradient to keep unbiased, and nearest rounding has the smaller error.
        stochastic = self.policy.rounding == "stochastic" and self.joint.training
        seed = self.joint.seed() if stochastic else None
        arguments = (values, _absmax_of(values), seed, self.count, bits, stochastic)
        target, suffix = (ops.quantize_int4.default, "int4") if bits <= MOST_PACKED_BITS else (QUANTIZE, "int8")
        quantized = call(target, arguments, like, f"{values.name}_quantized")
        self.count += 1
        return pick(quantized, 0, f"{values.name}_{suffix}"), pick(quantized, 1, f"{values.name}_scale")


def _features(x: fx.Node) -> list[Any]:
    return [size(x, axis) for axis in range(1, x.meta["val"].dim())]


def _absmax_of(values: fx.Node) -> fx.Node | None:
    """The absmax that an int8 primitive gives beside its output ``values``; after an activation it is only a bound."""
    produced = values.args[0] if values.op == "call_function" and values.args else None
    if isinstance(produced, fx.Node) and produced.target in _WITH_ABSMAX and values is pick(produced, 0):
        return pick(produced, 1, f"{values.name}_absmax")
    return None
