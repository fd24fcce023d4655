"""What in a stage's halves a CUDA graph cannot hold, or would hold as it was when it was recorded."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from gqc.cuda_graph.recorder import recorder_for
from gqc.joint import JointGraph
from gqc.passes.nodes import is_size
from gqc.passes.partition import Halves


def why_refused(joint: JointGraph, halves: Halves) -> str:
    """Why a stage is never recorded, ``""`` if it may be."""
    if recorder_for(joint.device) is None:
        return f"it computes on the device {joint.device.type!r}, and CUDA graphs need a GPU of NVIDIA"
    for half in (halves.forward, halves.backward):
        for node in half.graph.nodes if half is not None else ():
            reason = _why_refused(node, joint.device)
            if reason:
                return reason
    for node in _written(halves.backward.graph) if halves.backward is not None else ():
        return f"its backward changes {node.name} in place"
    return ""


def written_values(halves: Halves) -> frozenset[int]:
    """Positions of the values that the forward half changes in place, such as the statistics of a batch norm."""
    position = {node: i for i, node in enumerate(halves.forward.graph.find_nodes(op="placeholder"))}
    return frozenset(position[node] for node in _written(halves.forward.graph))


def _why_refused(node: fx.Node, device: torch.device) -> str:
    if node.op == "output":
        return ""
    elsewhere = [x for x in tree_leaves(node.meta.get("val")) if isinstance(x, Tensor) and x.device != device]
    if elsewhere and not _is_literal(node):
        return f"{node.name} is on {elsewhere[0].device} and not on {device}, so its values would never change"
    if node.op == "call_function":
        is_op = isinstance(node.target, torch._ops.OpOverload)
        if not (is_op or is_size(node) or node.target is operator.getitem):
            name = getattr(node.target, "__name__", str(node.target))
            return f"{node.name} calls {name}, which is Python and would not run in a replay"
        for target in _targets(node):
            if target.op != "placeholder":
                return f"{node.name} changes {target.name} in place, which may be part of an argument"
    return ""


def _is_literal(node: fx.Node) -> bool:
    """Whether the node is one number that is written in the graph: a kernel takes it as an argument."""
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, Tensor) and value.dim() == 0 and not node.all_input_nodes


def _written(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes that a graph changes in place."""
    for node in graph.nodes:
        yield from _targets(node)


def _targets(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that a node changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)} | node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (x for x in tree_leaves(given.get(argument.name)) if isinstance(x, fx.Node))
