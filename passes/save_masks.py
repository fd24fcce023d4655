"""Let the backward of an activation read a mask instead of a float tensor."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    EARLY,
    IDENTITIES,
    RESHAPES,
    aten,
    call,
    drop_unused,
    half,
    is_size,
    origin,
    source,
)
from gqc.passes.pointwise_steps import step_of
from gqc.passes.report import REPLACED, Decision, Report
from gqc.policy import Policy


def save_masks(joint: JointGraph, policy: Policy) -> Report:
    """Replace the float tensor that a ReLU's backward reads by where it is positive: 1 byte an element instead of 4.

    Requires: :func:`share_quantized`, after which GEMM and SPMM no longer read the float tensor in the backward.
    Does: rewrites the backward of ReLU and leaky ReLU to choose by a mask, if nothing else in the backward reads the
        values that the mask is made from, or they may be compressed (``Policy.save_bits``). (Their int8 copy would not
        do: rounding makes zeros of small values.) On the CPU also if something does, where :func:`fuse_pointwise` packs
        the mask: reading the floats once more takes longer than the product that is masked.
    Ensures: the same gradient, bit for bit.
    """
    report = Report("save_masks")
    packs = joint.device.type == "cpu" and "fuse_pointwise" not in policy.skip
    for node in list(joint.graph.nodes):
        if node.target not in _MASKED:
            continue
        values, reshapes = source(node.args[1])
        if half(values) == BACKWARD:
            continue
        shared = any(u is not node for u in _backward_readers(values))
        if policy.saves is not None:  # a compressed value no longer tells its sign
            values = node.args[1]
        elif reshapes or (shared and not (packs and step_of(values))):
            continue
        mask, masked = _MASKED[node.target](node, values)
        if shared and policy.saves is None:
            mask.meta[EARLY] = True
        node.replace_all_uses_with(masked)
        joint.graph.erase_node(node)
        reason = f"the backward reads the sign of {values.name}, not its values"
        report.decisions.append(Decision(node.name, origin(node).module, "activation", BACKWARD, REPLACED, reason))
    drop_unused(joint.graph)
    return report


def _relu(node: fx.Node, values: fx.Node) -> tuple[fx.Node, fx.Node]:
    gradient, _, threshold = node.args
    mask = _mask(aten.le.Scalar, node, values, threshold)
    with node.graph.inserting_before(node):
        return mask, call(aten.where.ScalarSelf, (mask, 0.0, gradient), node, f"{node.name}_masked")


def _leaky_relu(node: fx.Node, values: fx.Node) -> tuple[fx.Node, fx.Node]:
    gradient, _, slope, _ = node.args
    mask = _mask(aten.gt.Scalar, node, values, 0)
    with node.graph.inserting_before(node):
        scaled = call(aten.mul.Tensor, (gradient, slope), node, f"{node.name}_scaled")
        return mask, call(aten.where.self, (mask, gradient, scaled), node, f"{node.name}_masked")


def _mask(compare: OpOverload, node: fx.Node, values: fx.Node, threshold: object) -> fx.Node:
    with node.graph.inserting_after(values):
        return call(compare, (values, threshold), node, f"{values.name}_mask")


_MASKED = {aten.threshold_backward.default: _relu, aten.leaky_relu_backward.default: _leaky_relu}


def _backward_readers(values: fx.Node) -> list[fx.Node]:
    """The backward nodes that read a tensor's values, directly or behind reshapes and copies."""
    readers = []
    for user in values.users:
        if user.target in RESHAPES or user.target in IDENTITIES:
            readers += _backward_readers(user)
        elif half(user) == BACKWARD and not is_size(user):
            readers.append(user)
    return readers
