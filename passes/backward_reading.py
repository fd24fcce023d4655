"""Which nodes the backward computes, and how it comes to read values in another form."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    IDENTITIES,
    RESHAPES,
    VIEWS,
    aten,
    call,
    example,
    is_size,
    is_tensor,
    replay,
)
from gqc.passes.saved_values import REPEATED, halves_of, is_repeated, tangent_dependent

_VIEWS = RESHAPES | IDENTITIES | REPEATED

Restore = Callable[[fx.Node], fx.Node]


class Reading:
    """What the backward computes, and the values that it is to read in another form than the forward has them.

    Args:
        joint: forward and backward.
        saved: what crosses from the forward to the backward.
        repeats: what both halves compute, views aside.

    Attributes:
        restored: for such a value, what adds it to the graph before its first reader, which it is given.
    """

    def __init__(self, joint: JointGraph, saved: Iterable[fx.Node], repeats: Container[fx.Node] = ()) -> None:
        self.restored: dict[fx.Node, Restore] = {}
        self._read_as: dict[fx.Node, fx.Node] = {}
        self._repeats = repeats
        self._graph, self._late = joint.graph, tangent_dependent(joint)
        self._forward, self._backward = halves_of(joint, saved)

    def rewire(self) -> None:
        """Let the backward read what is restored, and repeat the views that both halves have of it."""
        only_backward = [n for n in self._graph.nodes if n in self._backward and n not in self._forward]
        for node in reversed([n for n in only_backward if n not in self._late and n.op == "call_function"]):
            min(node.users).prepend(node)  # so that what it reads is restored late
        for node in list(self._graph.nodes):
            if node in self._backward and node not in self._forward and not is_size(node):
                for operand in node.all_input_nodes:
                    node.replace_input_with(operand, self._read(operand, node))
        if any(not _is_laid_out_row_by_row(node) for node in self.restored):
            for node in self._backward - self._forward:
                if node.target in VIEWS:  # of a tensor that is no view any more with other strides
                    node.target = aten.reshape.default

    def again(self) -> list[fx.Node]:
        """The tensors without gradient that the backward computes, views and packed values aside, after rewiring."""
        early = [n for n in self._graph.nodes if n not in self._late and self._is_again(n)]
        return [n for n in early if n.op == "call_function" and is_tensor(n) and n.target not in _VIEWS]

    def _is_again(self, node: fx.Node) -> bool:
        if node in self._repeats and node in self._forward:
            return self._read_as.get(node, node) is not node and node not in self.restored
        return node in self._backward and node not in self._forward

    def _read(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        if node not in self._read_as:
            self._read_as[node] = self._find(node, reader)
        return self._read_as[node]

    def _find(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        if node in self.restored:
            return self.restored[node](reader)
        repeated = is_repeated(node) or node in self._repeats
        if not repeated or is_size(node) or node not in self._forward or node not in self._backward:
            return node
        read = {n: self._read(n, reader) for n in node.all_input_nodes}
        if all(n is found for n, found in read.items()) and node not in self._repeats:
            return node
        with node.graph.inserting_before(reader):
            if node.target in RESHAPES:
                again = replay(node, read[node.args[0]], f"{node.name}_again")  # type: ignore[index]
            else:
                arguments = fx.map_arg(node.args, lambda n: read.get(n, n))
                again = call(node.target, arguments, node, f"{node.name}_again", **node.kwargs)  # type: ignore[arg-type]
        again.meta["partitioner_tag"] = "is_backward"
        return again


def _is_laid_out_row_by_row(node: fx.Node) -> bool:
    """Whether a tensor has the strides that it has when it is restored."""
    value, expected = node.meta["val"], 1
    for axis in reversed(range(value.dim())):
        if example(value.stride(axis)) != expected:
            return False
        expected *= max(1, example(value.shape[axis]))
    return True
