"""Mark the primitives of the joint graph."""

from __future__ import annotations

from gqc.joint import JointGraph
from gqc.passes.join_typed_sums import join_typed_sums
from gqc.passes.nodes import half, origin
from gqc.passes.primitive import KINDS, Primitive, form
from gqc.passes.report import FOUND, Decision, Report
from gqc.policy import Policy


def find_primitives(joint: JointGraph, policy: Policy) -> Report:
    """Mark every GEMM, SPMM, SDDMM, edge softmax and typed matrix product, forward and backward.

    Requires: a graph of aten and gqc ops.
    Does: joins the ops of a sum of products by type (:func:`join_typed_sums`), then puts a :class:`Primitive` under
        ``node.meta["gqc"]``.
    Ensures: every op of :data:`gqc.passes.primitive.KINDS` is marked; nothing else changes.
    """
    report = Report("find_primitives")
    join_typed_sums(joint)
    for node in joint.graph.nodes:
        kind = KINDS.get(node.target) if node.op == "call_function" else None
        if kind is None:
            continue
        found = Primitive(kind, form(node), half(node))
        node.meta["gqc"] = found
        report.decisions.append(Decision(node.name, origin(node).module, kind, found.half, FOUND, found.op))
    return report
