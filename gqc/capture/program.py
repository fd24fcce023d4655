"""A part of a recorded graph that runs on its own, on the flat tensors of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor

from gqc.capture.example import Example

_size_of = torch.ops.aten.sym_size.int


class Program:
    """Computes some nodes of a recorded graph, and nothing else.

    Attributes:
        tensors: the placeholder and get_attr nodes whose tensors it reads: its arguments, in this order.
        sizes: the sym_size nodes of placeholders, whose values follow; the tensors themselves are not read for them.
        graph: the same as a graph, with one placeholder an argument.
        forward: the function of tensors and sizes; returns a tuple, one item an output.

    ``until`` is the node at which the outputs are read, by default the last of them: what is written to their memory
    before belongs to them.
    """

    def __init__(self, outputs: Sequence[fx.Node], example: Example, until: fx.Node | None = None) -> None:
        nodes = example.ancestors(list(outputs), stop=is_argument_size, until=until)
        self.nodes = [node for node in outputs[0].graph.nodes if node in nodes]
        self.tensors = sorted(
            (node for node in self.nodes if node.op in ("placeholder", "get_attr")), key=lambda n: n.op == "get_attr"
        )
        self.sizes = [node for node in self.nodes if is_argument_size(node)]
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in (*self.tensors, *self.sizes)}
        for node in self.tensors:
            if node.meta.get("buffer") or example.is_written(node):
                copies[node] = graph.call_method("clone", (copies[node],))
        for node in self.nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        self.graph = graph
        self.forward: Callable[..., Any] = fx.GraphModule({}, graph).forward

    @property
    def integer_only(self) -> bool:
        """Whether it reads no floating-point data and no state of the model, so that its results can be remembered."""
        return all(
            bool(node.meta.get("constant")) if node.op == "get_attr" else not _fake(node).is_floating_point()
            for node in self.tensors
        )


def is_argument_size(node: fx.Node) -> bool:
    """Whether a node is the size of an argument, which says nothing about the argument's data."""
    return node.target is _size_of and node.args[0].op == "placeholder"


def _fake(node: fx.Node) -> Tensor:
    return node.meta["val"]
