"""The joint graph as one graph of tensors and operators."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

from gqc.joint import INPUT, JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    IDENTITIES,
    PARTS,
    RESHAPES,
    aten,
    example,
    example_numel,
    half,
    is_neutral,
    is_size,
    is_tensor,
    mutates,
    origin,
    undropped,
)
from gqc.passes.primitive import mark, ops

SAME, RESHAPED, EXPANDED, CAST, PART, UPDATED = "same", "reshaped", "expanded", "cast", "part", "updated"
UNPACKED = "unpacked"
"""How a tensor follows from another whose values it carries."""

_COPIES = (aten.clone.default, aten.lift_fresh_copy.default, aten._to_copy.default, ops.unpack_int4.default)


@dataclass
class ComputationGraph:
    """Tensors and operators of a joint graph and which makes and reads which.

    A tensor is named as its node; an operator as its node with ``()``. Sizes are left out. Tensors have the attributes
    ``type="tensor"``, ``kind`` (parameter, buffer, input, tangent, seed, activation or gradient), ``half``, ``module``,
    ``precision``, ``dtype``, ``shape`` and ``bytes`` at the example call, and ``result``, what the graph returns it as;
    operators ``type="operator"``, ``kind`` (that of the primitive, else how the result follows from the operand, else
    ``"other"``), ``op``, ``half``, ``module``, ``precision`` and ``reason``.

    Attributes:
        graph: edges lead from a tensor to the operators that read it and from an operator to its results.
        nodes: the node of the joint graph behind each name.
        order: position of each operator in the joint graph.
    """

    graph: networkx.DiGraph
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, joint: JointGraph) -> ComputationGraph:
        """Build the graph; later changes of ``joint`` do not show in it."""
        built = cls(networkx.DiGraph())
        kinds = {p.node: p.kind for p in joint.placeholders}
        results = _results(joint)
        for node in joint.graph.nodes:
            if node.op == "output" or is_size(node):
                continue
            if node.op == "call_function" and node.target is not operator.getitem:
                built._add_operator(node)
            if is_tensor(node):
                built._add_tensor(node, kinds.get(node), results.get(node, ""))
        return built

    def _add_operator(self, node: fx.Node) -> None:
        name = f"{node.name}()"
        primitive, derived = mark(node), derivation(node)
        kind = primitive.kind if primitive is not None else _KINDS.get(node.target, derived[0] if derived else "other")
        read = {_quantized(n) for n in node.all_input_nodes}
        precision = next((p for p in ("int4", "int8") if p in read), "fp32")
        reason = (primitive.kept if primitive is not None else None) or ""
        self._add(name, node, type="operator", kind=kind, op=str(node.target), precision=precision, reason=reason)
        self.order[name] = len(self.order)
        for operand in node.all_input_nodes:
            if operand.name in self.graph:
                self.graph.add_edge(operand.name, name)

    def _add_tensor(self, node: fx.Node, kind: str | None, result: str) -> None:
        value: Tensor = node.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        shape = "x".join(str(example(size)) for size in value.shape)
        kind = kind or ("gradient" if half(node) == BACKWARD else "activation" if node.op == "call_function" else INPUT)
        nbytes = example_numel(value) * value.dtype.itemsize
        precision = _quantized(node) or _PRECISIONS.get(value.dtype, dtype)
        self._add(node.name, node, type="tensor", kind=kind, precision=precision, dtype=dtype)
        self.graph.nodes[node.name].update(shape=shape, bytes=nbytes, result=result)
        producer = node.args[0] if node.target is operator.getitem else node
        if f"{producer.name}()" in self.graph:  # type: ignore[union-attr]
            self.graph.add_edge(f"{producer.name}()", node.name)  # type: ignore[union-attr]

    def _add(self, name: str, node: fx.Node, **attributes: Any) -> None:
        self.nodes[name] = node
        self.graph.add_node(name, half=half(node), module=origin(node).module, **attributes)

    def readers(self, tensor: fx.Node) -> list[fx.Node]:
        """The operators that compute with a tensor's values, directly or behind reshapes and copies, in graph order."""
        found: set[str] = set()
        stack = [tensor.name]
        while stack:
            for reader in self.graph.successors(stack.pop()):
                derived = derivation(self.nodes[reader])
                if derived is not None and derived[0] in (SAME, RESHAPED, EXPANDED, CAST, UNPACKED):
                    stack.extend(self.graph.successors(reader))
                else:
                    found.add(reader)
        return [self.nodes[name] for name in sorted(found, key=self.order.__getitem__)]

    def aliases(self, tensor: fx.Node) -> set[fx.Node]:
        """All tensors that may share memory with a tensor, itself included."""
        views = networkx.Graph()
        views.add_node(tensor.name)
        views.add_edges_from((node.name, viewed.name) for node, viewed in self._views())
        together = networkx.node_connected_component(views, tensor.name)
        return {self.nodes[name] for name in together if name in self.nodes}

    def _views(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Pairs of a result and what it may share memory with, after the schema of its op."""
        for name, node in self.nodes.items():
            if self.graph.nodes[name]["type"] == "operator":
                yield from ((node, viewed) for viewed in viewed_by(node))
            elif node.target is operator.getitem:
                yield node, node.args[0]  # type: ignore[misc]
            elif (derived := derivation(node)) is not None and node.target not in _COPIES:
                yield node, derived[1]

    def write_graphml(self, path: str | Path) -> None:
        """Write the graph for Gephi, yEd, Cytoscape or ``networkx.read_graphml``."""
        networkx.write_graphml(self.graph, str(path))


def viewed_by(node: fx.Node) -> list[fx.Node]:
    """The operands of an op that share memory with its results or are updated by it."""
    return [n for schema, n in _operands(node) if schema.alias_info is not None]


def updated_by(node: fx.Node) -> list[fx.Node]:
    """The operands that an op updates in place."""
    return [n for schema, n in _operands(node) if schema.alias_info is not None and schema.alias_info.is_write]


def _operands(node: fx.Node) -> Iterator[tuple[Any, fx.Node]]:
    """The tensors that an op reads or updates, alone or in lists, each with the argument of its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    for position, schema in enumerate(node.target._schema.arguments):
        given = node.args[position] if position < len(node.args) else node.kwargs.get(schema.name)
        for operand in given if isinstance(given, list | tuple) else [given]:
            if isinstance(operand, fx.Node):
                yield schema, operand


def derivation(node: fx.Node) -> tuple[str, fx.Node] | None:
    """How the values of a tensor follow from those of another, and that other; ``None`` if they are computed."""
    if node.op != "call_function" or not is_tensor(node):
        return None
    operand = undropped(node)
    if operand is not None:
        return SAME, operand
    how = next((how for targets, how in _DERIVATIONS if node.target in targets), None)
    if is_neutral(node):
        how = SAME
    elif mutates(node):
        how = UPDATED
    return (how, node.args[0]) if how is not None and is_tensor(node.args[0]) else None  # type: ignore[return-value]


def _quantized(node: fx.Node) -> str | None:
    """The precision of a quantized tensor: packed 4-bit values stand in bytes, as masks may."""
    if node.target is operator.getitem and node.args[0].target is ops.quantize_int4.default and node.args[1] == 0:  # type: ignore[union-attr]
        return "int4"
    return "int8" if is_tensor(node) and node.meta["val"].dtype is torch.int8 else None


def carried(tensor: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The tensor that first held a tensor's values, and the reshapes and repetitions from there in order.

    One scale a tensor is the same on the whole way.
    """
    path: list[fx.Node] = []
    while (derived := derivation(tensor)) is not None and derived[0] in (SAME, RESHAPED, EXPANDED):
        if derived[0] != SAME:
            path.append(tensor)
        tensor = derived[1]
    return tensor, path[::-1]


_DERIVATIONS = (
    (IDENTITIES, SAME),
    (RESHAPES, RESHAPED),
    ((aten.expand.default,), EXPANDED),
    ((aten._to_copy.default,), CAST),
    (PARTS, PART),
    ((ops.unpack_int4.default,), UNPACKED),
)
_KINDS = {ops.quantize.default: "quantize", ops.quantize_int4.default: "quantize", ops.dequantize.default: "dequantize"}
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


def _results(joint: JointGraph) -> dict[fx.Node, str]:
    named = [(node, f"output {i}") for i, node in enumerate(joint.forward_outputs)]
    named += [(node, f"gradient of {of.name}") for of, node in zip(joint.gradient_of, joint.gradients, strict=False)]
    return {node: what for node, what in named if isinstance(node, fx.Node)}
