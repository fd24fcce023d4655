"""Remove what AOTAutograd computes twice or for nothing."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.joint import JointGraph
from gqc.passes.nodes import IDENTITIES, aten, drop_unused, is_neutral, is_random, mutates
from gqc.passes.primitive import KINDS
from gqc.passes.report import Report
from gqc.policy import Policy

_INVERSES = {aten.t.default: aten.t.default, aten.squeeze.dim: aten.unsqueeze.default}


def simplify(joint: JointGraph, policy: Policy) -> Report:
    """Merge equal calls and drop calls that change nothing.

    Requires: the graph as AOTAutograd made it: functional, with in-place updates at its end.
    Does: drops detach, alias and clone (dropout that is off), slices of all rows, products with 1 and powers of 1 where
        the layout stays the same, and pairs of inverse reshapes; merges calls of the same op on the same arguments,
        such as the degrees that each layer computes anew. Results of the graph stay tensors of their own. Random ops
        are never merged, nor primitives, whose backward is found by the call that they come from.
    Ensures: the same values; every tensor that the backward reads has one name.
    """
    before = _count(joint)
    seen: dict[Hashable, fx.Node] = {}
    results = set(joint.output.all_input_nodes)
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in results or mutates(node) or is_random(node):
            continue
        same = _unchanged(node) or (node if node.target in KINDS else seen.setdefault(_key(node), node))
        if same is not node:
            node.replace_all_uses_with(same)
    drop_unused(joint.graph)
    return Report("simplify", numbers={"nodes before": before, "nodes": _count(joint)})


def _count(joint: JointGraph) -> int:
    """Number of nodes without the output."""
    return len(joint.graph.nodes) - 1


def _unchanged(node: fx.Node) -> fx.Node | None:
    """The earlier node that ``node`` equals in values, shape and layout, if it is only a copy or an undone reshape."""
    operand = node.args[0] if node.args else None
    if not isinstance(operand, fx.Node):
        return None
    if node.target in IDENTITIES or is_neutral(node):
        return operand if _layout(operand) == _layout(node) else None
    if node.target in (aten.slice.Tensor, aten.slice_backward.default):
        return operand if _same_shape(operand, node) else None
    inverse = _INVERSES.get(node.target)  # type: ignore[call-overload]
    if operand.target is inverse and operand.args[1:] == node.args[1:]:
        original: fx.Node = operand.args[0]  # type: ignore[assignment]
        return original if _layout(original) == _layout(node) else None
    return None


def _same_shape(node: fx.Node, part: fx.Node) -> bool:
    """Whether a slice of a tensor is all of it."""
    sizes = zip(node.meta["val"].shape, part.meta["val"].shape, strict=True)
    return all(statically_known_true(whole == cut) for whole, cut in sizes)


def _layout(node: fx.Node) -> Hashable:
    value = node.meta["val"]
    return (tuple(value.shape), tuple(value.stride()), value.dtype) if isinstance(value, Tensor) else node


def _key(node: fx.Node) -> Hashable:
    return node.target, _frozen(node.args), _frozen(node.kwargs)


def _frozen(value: object) -> Hashable:
    """A hashable stand-in for an argument in which 1, 1.0 and True differ."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(v)) for key, v in value.items())
    return type(value), value
