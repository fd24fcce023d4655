"""The int8 copies of tensors in a joint graph: who makes them, who reads them, how long they live."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.computation_graph import ComputationGraph
from gqc.passes.nodes import example_numel, half, origin, pick
from gqc.passes.primitive import ops
from gqc.passes.report import Lifetime

QUANTIZE = (ops.quantize.default, ops.quantize_int4.default)


def quantize_nodes(joint: JointGraph) -> list[fx.Node]:
    """The ``quantize`` nodes of a joint graph in graph order."""
    return [n for n in joint.graph.nodes if n.op == "call_function" and n.target in QUANTIZE]


def bits_of(quantize: fx.Node) -> int:
    """Width of the values that a ``quantize`` node gives."""
    return quantize.args[4]  # type: ignore[return-value]


def copies_and_readers(joint: JointGraph) -> dict[fx.Node, list[fx.Node]]:
    """For each ``quantize`` node that is read, the operators that compute with its values, in graph order."""
    int8 = {node: pick(node, 0) for node in quantize_nodes(joint)}
    graph = ComputationGraph.of(joint)
    read = {node: graph.readers(values) for node, values in int8.items()}
    return {node: readers for node, readers in read.items() if readers}


def lifetimes(joint: JointGraph) -> list[Lifetime]:
    """From where to where each int8 copy lives, in the order in which they are made."""
    return [_lifetime(node, readers) for node, readers in copies_and_readers(joint).items()]


def _lifetime(node: fx.Node, readers: list[fx.Node]) -> Lifetime:
    int8 = pick(node, 0)
    return Lifetime(
        tensor=node.args[0].name,  # type: ignore[union-attr]
        producer=node.name,
        module=origin(node).module,
        half=half(node),
        bits=bits_of(node),
        nbytes=example_numel(int8.meta["val"]),
        first_use=readers[0].name,
        last_use=readers[-1].name,
        last_half=half(readers[-1]),
        readers=len(readers),
    )
