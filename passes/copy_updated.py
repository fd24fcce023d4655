"""Copy the buffers that the backward must read as they were before the forward updated them."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import aten, call, first_call, is_size, is_updated, mutates
from gqc.passes.report import Report
from gqc.passes.saved_values import REPEATED, tangent_dependent
from gqc.policy import Policy


def copy_updated(joint: JointGraph, policy: Policy) -> Report:
    """Give all readers of an updated buffer a copy of it, if the backward is among them.

    Requires: :func:`simplify`, which would drop the copies. In-place updates stand at the end of the graph.
    Does: in one graph a reader runs before the update; as a half of its own, the backward runs after it.
    Ensures: the backward reads no buffer that the graph updates, nor a view of one.
    """
    late = tangent_dependent(joint)
    for buffer in (p.node for p in joint.placeholders if is_updated(p.node)):
        readers = [u for u in buffer.users if not mutates(u) and not is_size(u)]
        if not any(_reaches_through_views(reader, late) for reader in readers):
            continue
        with joint.graph.inserting_before(first_call(joint.graph)):
            copy = call(aten.clone.default, (buffer,), buffer, f"{buffer.name}_before")
        for reader in readers:
            reader.replace_input_with(buffer, copy)
    return Report("copy_updated")


def _reaches_through_views(node: fx.Node, late: set[fx.Node]) -> bool:
    return node in late or (node.target in REPEATED and any(_reaches_through_views(u, late) for u in node.users))
