"""The int8 copies of tensors in a joint graph: who makes them, who reads them, how long they live."""

from __future__ import annotations

import operator

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.computation_graph import ComputationGraph
from gqc.passes.nodes import by_name, example_numel, half, origin, pick
from gqc.passes.primitive import ops
from gqc.passes.report import Lifetime
from gqc.runtime.pointwise.program import parse

QUANTIZE = (ops.quantize.default, ops.quantize_int4.default)
_READ_FLOATS = (ops.quantize_qgemm.default, ops.quantize_qgemm_pointwise.default)
_RUN_PROGRAMS = (
    ops.pointwise.default,
    ops.mm_pointwise.default,
    ops.qgemm_pointwise.default,
    ops.quantize_qgemm_pointwise.default,
)
MAKES_COPY = (ops.quantize_qgemm.default, ops.qgemm_int8.default, *_RUN_PROGRAMS)
"""Ops that make int8 copies beside other results; their copies are what picks them."""


def quantize_nodes(joint: JointGraph) -> list[fx.Node]:
    """The nodes that only make an int8 copy, in graph order."""
    return [n for n in joint.graph.nodes if n.op == "call_function" and n.target in QUANTIZE]


def is_copy(node: fx.Node) -> bool:
    """Whether a node stands for an int8 copy: a ``quantize``, or what picks the int8 result of another op."""
    if node.target is operator.getitem and node.args[0].target in MAKES_COPY:  # type: ignore[union-attr]
        return node.meta["val"].dtype is torch.int8
    return node.target in QUANTIZE


def maker_of(copy: fx.Node) -> fx.Node:
    """The op that computes an int8 copy."""
    return copy if copy.target in QUANTIZE else copy.args[0]  # type: ignore[return-value]


def rounding_of(copy: fx.Node) -> tuple[int, bool]:
    """Width of the values of an int8 copy, and whether they are rounded stochastically."""
    maker = maker_of(copy)
    given = by_name(maker)
    if not made_by_program(copy):
        return given["bits"], given["stochastic"]
    results = [output for output in parse(given["program"]).outputs for _ in range(1 + (output.form == "int8"))]
    _, bits, stochastic = results[copy.args[1] - _before_program(maker)].parameters  # type: ignore[operator]
    return bits, bool(stochastic)


def made_by_program(copy: fx.Node) -> bool:
    """Whether an int8 copy is a result of a pointwise program, alone or behind a product."""
    maker = maker_of(copy)
    return maker.target in _RUN_PROGRAMS and copy.args[1] >= _before_program(maker)  # type: ignore[operator]


def _before_program(maker: fx.Node) -> int:
    """How many results stand before those of the program."""
    return 2 if maker.target is ops.quantize_qgemm_pointwise.default else 0


def bits_of(copy: fx.Node) -> int:
    """Width of the values of an int8 copy."""
    return rounding_of(copy)[0]


def copied(copy: fx.Node) -> fx.Node:
    """The tensor that an int8 copy holds: what a ``quantize`` reads, or the op that computes it itself."""
    maker = maker_of(copy)
    reads = maker.target in (*QUANTIZE, *_READ_FLOATS) and not made_by_program(copy)
    return maker.args[0] if reads else maker  # type: ignore[return-value]


def copies_and_readers(joint: JointGraph) -> dict[fx.Node, list[fx.Node]]:
    """For each int8 copy that is read, the operators that compute with it, in graph order."""
    copies = [n for n in joint.graph.nodes if n.op == "call_function" and is_copy(n)]
    graph = ComputationGraph.of(joint)
    read = {copy: graph.readers(_values(copy)) for copy in copies}
    return {copy: readers for copy, readers in read.items() if readers}


def _values(copy: fx.Node) -> fx.Node:
    return pick(copy, 0) if copy.target in QUANTIZE else copy


def lifetimes(joint: JointGraph) -> list[Lifetime]:
    """From where to where each int8 copy lives, in the order in which they are made."""
    return [_lifetime(node, readers) for node, readers in copies_and_readers(joint).items()]


def _lifetime(node: fx.Node, readers: list[fx.Node]) -> Lifetime:
    int8 = _values(node)
    return Lifetime(
        tensor=copied(node).name,
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
