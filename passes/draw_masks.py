"""Let dropout draw from the generator of stochastic rounding."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import aten, call, drop_unused, half, origin, pick
from gqc.passes.primitive import ops
from gqc.passes.report import KEPT, REPLACED, Decision, Report
from gqc.passes.saved_plan import MASK_SHAPE
from gqc.policy import Policy

DROPOUT, DROPOUT_BACKWARD = aten.native_dropout.default, aten.native_dropout_backward.default
FIRST_STREAM = 1 << 16
"""Number of the first dropout's stream of random bits; the streams of ``quantize`` are numbered from 0."""


def draw_masks(joint: JointGraph, policy: Policy) -> Report:
    """Replace torch's dropout by one that draws in parallel and saves its mask in 1 bit an element.

    Requires: nothing.
    Does: where only the dropout's own backward reads the mask, calls ``gqc.dropout``; the dropped elements are others
        than eager's for the same seed, of the same distribution. With ``bits=32`` torch's dropout stays, so that a
        run equals eager's.
    Ensures: the expectation of every value.
    """
    report = Report("draw_masks")
    for number, node in enumerate(joint.graph.find_nodes(op="call_function", target=DROPOUT, sort=True)):
        action, reason = _redraw(joint, node, FIRST_STREAM + number, policy)
        report.decisions.append(Decision(node.name, origin(node).module, "dropout", half(node), action, reason))
    drop_unused(joint.graph)
    return report


def _redraw(joint: JointGraph, node: fx.Node, stream: int, policy: Policy) -> tuple[str, str]:
    x, probability, training = node.args
    if policy.bits == 32:
        return KEPT, "bits=32 draws eager's random numbers"
    if not training:
        return KEPT, "it drops nothing"
    mask = pick(node, 1)
    backwards = list(mask.users)
    if any(user.target is not DROPOUT_BACKWARD or user.args[1] is not mask for user in backwards):
        return KEPT, "its mask is read by more than its backward"
    with joint.graph.inserting_before(node):
        dropped = call(ops.dropout.default, (x, probability, joint.seed(), stream), node, f"{node.name}_gqc")
    pick(node, 0).replace_all_uses_with(pick(dropped, 0))
    pick(dropped, 1).meta[MASK_SHAPE] = tuple(mask.meta["val"].shape)
    for user in backwards:
        with joint.graph.inserting_before(user):
            arguments = (user.args[0], pick(dropped, 1), probability)
            undropped = call(ops.dropout_backward.default, arguments, user, f"{user.name}_gqc")
        user.replace_all_uses_with(undropped)
        joint.graph.erase_node(user)
    return REPLACED, "drawn in parallel, its mask is saved in 1 bit an element"
