"""Let the backward of ReLU read a mask instead of a float tensor."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    IDENTITIES,
    RESHAPES,
    aten,
    call,
    drop_unused,
    half,
    is_size,
    origin,
    replay,
    source,
)
from gqc.passes.report import REPLACED, Decision, Report
from gqc.policy import Policy

RELU_BACKWARD = aten.threshold_backward.default


def save_masks(joint: JointGraph, policy: Policy) -> Report:
    """Replace the ReLU output that a ReLU backward reads by where it is zero: 1 byte an element instead of 4.

    Requires: :func:`share_quantized`, after which GEMM and SPMM no longer read the float tensor in the backward.
    Does: turns ``threshold_backward(grad, x, t)`` into ``where(x <= t, 0, grad)`` if nothing else in the backward
        reads the values of ``x``. (The int8 copy of ``x`` would not do: rounding makes zeros of small values.)
    Ensures: the same gradient, bit for bit.
    """
    report = Report("save_masks")
    for node in joint.graph.find_nodes(op="call_function", target=RELU_BACKWARD, sort=True):
        gradient, result, threshold = node.args
        values, path = source(result)
        if half(values) == BACKWARD or any(u is not node for u in _backward_readers(values)):
            continue
        with joint.graph.inserting_after(values):
            mask = call(aten.le.Scalar, (values, threshold), node, f"{values.name}_mask")
        with joint.graph.inserting_before(node):
            for step in path:
                mask = replay(step, mask, f"{step.name}_mask")
            masked = call(aten.where.ScalarSelf, (mask, 0.0, gradient), node, f"{node.name}_masked")
        node.replace_all_uses_with(masked)
        joint.graph.erase_node(node)
        reason = f"the backward reads where {values.name} is zero, not its values"
        report.decisions.append(Decision(node.name, origin(node).module, "relu", BACKWARD, REPLACED, reason))
    drop_unused(joint.graph)
    return report


def _backward_readers(values: fx.Node) -> list[fx.Node]:
    """The backward nodes that read a tensor's values, directly or behind reshapes and copies."""
    readers = []
    for user in values.users:
        if user.target in RESHAPES or user.target in IDENTITIES:
            readers += _backward_readers(user)
        elif half(user) == BACKWARD and not is_size(user):
            readers.append(user)
    return readers
