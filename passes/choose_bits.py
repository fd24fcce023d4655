"""Choose how many bits the operands of each primitive have."""

from __future__ import annotations

from dataclasses import replace

from gqc.joint import JointGraph
from gqc.layer_bits import EXACT, LayerBits
from gqc.passes.nodes import origin
from gqc.passes.primitive import marked
from gqc.passes.report import KEPT, Decision, Report
from gqc.policy import Policy


def choose_bits(joint: JointGraph, policy: Policy) -> Report:
    """Give every primitive that is not kept the width of its module.

    Requires: :func:`find_primitives`; after :func:`keep_full_precision`, so that only what is quantized gets a width.
    Does: sets :attr:`Primitive.bits` from ``Policy.bits``; a layer of 32 bits is kept in full precision. A backward
        primitive has the module, and so the width, of its forward.
    Ensures: operands of one primitive have one width.
    """
    report = Report("choose_bits")
    for node, primitive in marked(joint.graph):
        if primitive.kept is not None:
            continue
        entry, bits = (
            policy.bits.find(origin(node).module) if isinstance(policy.bits, LayerBits) else (None, policy.bits)
        )
        if bits == EXACT:
            kept = "Policy.bits=32" if entry is None else f"Policy.bits[{entry!r}]=32"
            node.meta["gqc"] = replace(primitive, kept=kept)
            decision = Decision(node.name, origin(node).module, primitive.kind, primitive.half, KEPT, kept)
            report.decisions.append(decision)
        else:
            node.meta["gqc"] = replace(primitive, bits=bits)
    return report
