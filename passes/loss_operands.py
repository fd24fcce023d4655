"""What a loss inside the model reads."""

from __future__ import annotations

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    FOR_BACKWARD,
    IDENTITIES,
    RESHAPES,
    aten,
    example_numel,
    half,
    inputs_of_values,
    is_float,
)
from gqc.passes.rounded_reads import DERIVATIVES

FEWEST_BITS_OF_LOSS = 8
"""Of what a loss reads: every gradient is a multiple of it, and a batch's few rows take little memory."""

_REDUCTIONS = (aten.sum.default, aten.mean.default)
_LOSSES = tuple(
    getattr(aten, name).default
    for name in (
        *("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    )
)
"""Elementwise functions with their sum or mean."""

_REDUCTIONS_OF_AXES = (aten.sum.dim_IntList, aten.mean.dim)

_ELEMENTWISE = (
    DERIVATIVES | RESHAPES | IDENTITIES | {*_REDUCTIONS, *_LOSSES, aten.expand.default, aten.full_like.default}
)


def loss_operands(joint: JointGraph) -> set[fx.Node]:
    """The tensors that the model's losses are computed of by elementwise ops and sums of rows alone.

    Derivatives and whatever else only the backward computes of these alone belong to them.

    A loss is a result of one element. As the layer before a softmax computes in full precision, so the scores of a
    ranking loss are not to be rounded away: of the difference between two items that are much alike, 2 bits of each
    leave nothing but noise.
    """
    found: set[fx.Node] = set()
    stack = [node for node in joint.forward_outputs if _is_loss(node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if _is_elementwise(node):
                stack.extend(_computed(node))
    for node in joint.graph.nodes:
        if _is_elementwise(node) and (FOR_BACKWARD in node.meta or half(node) == BACKWARD):
            read = _computed(node)
            if read and found.issuperset(read):
                found.add(node)
    return found


def _is_loss(node: fx.Node | None) -> bool:
    return node is not None and is_float(node) and example_numel(node.meta["val"]) == 1


def _computed(node: fx.Node) -> list[fx.Node]:
    """The float tensors that a node reads, but for those that the caller holds."""
    return [n for n in inputs_of_values(node) if is_float(n) and n.op == "call_function"]


def _is_elementwise(node: fx.Node) -> bool:
    """Whether a node is elementwise, or a sum over all of its operand or over each of its rows."""
    if node.target in _REDUCTIONS_OF_AXES:
        axes, last = node.args[1], node.args[0].meta["val"].dim() - 1  # type: ignore[union-attr]
        return not axes or [axis % (last + 1) for axis in axes] == [last]  # type: ignore[union-attr,operator]
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return is_pointwise or node.target in _ELEMENTWISE
