"""A captured graph cut around its eager islands.

An island runs Python that a graph cannot hold, so AOTAutograd cannot differentiate through it. The nodes before,
between and after the islands, in program order, become stages that are compiled one by one; the autograd engine joins
them. Sizes do not cross from stage to stage: each stage computes them anew from the tensors that have them, except
sizes that the model returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gqc.capture.islands import Island

SIZE_OF = torch.ops.aten.sym_size.int


@dataclass(frozen=True)
class Stage:
    """A part of a captured graph without islands.

    Attributes:
        graph: placeholders and outputs are flat.
        fakes: one fake tensor a placeholder.
        reads: name of the value that each placeholder takes.
        writes: name of the value that each output becomes.
    """

    graph: fx.GraphModule
    fakes: tuple[Tensor, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class IslandCall:
    """An island between two stages; ``graph`` calls it eagerly.

    Attributes:
        island: what runs.
        graph: its placeholders and outputs are flat.
        reads, writes: names of the values that it takes and gives.
    """

    island: Island
    graph: fx.GraphModule
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def cut(captured: fx.GraphModule) -> list[Stage | IslandCall]:
    """Cut a captured graph around its islands, in running order; a graph without islands is one stage."""
    runs: list[list[fx.Node]] = [[]]
    for node in captured.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if isinstance(node.target, Island):
            runs += [[node], []]
        elif len(runs) > 1 and _belongs_to_island(node):
            runs[_run_of(runs, node.all_input_nodes[0])].append(node)
        else:
            runs[-1].append(node)
    outputs = captured.graph.output_node().all_input_nodes
    steps: list[Stage | IslandCall] = []
    for run in runs:
        inside = set(run)
        writes = [n for n in run if n in outputs or (not _is_size(n) and any(u not in inside for u in _readers(n)))]
        if not writes and not any(n.meta.get("writes") for n in run):
            continue
        graph, sources = _extract(captured, run, writes)
        if isinstance(run[0].target, Island):
            steps.append(IslandCall(run[0].target, graph, _names(sources), _names(writes)))
        else:
            steps.append(Stage(graph, tuple(_fake(n) for n in sources), _names(sources), _names(writes)))
    return steps


def _belongs_to_island(node: fx.Node) -> bool:
    """Whether the node only picks a result of an island."""
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and isinstance(source.target, Island) and not isinstance(_value(source), Tensor)


def _run_of(runs: Sequence[list[fx.Node]], node: fx.Node) -> int:
    return next(i for i, run in enumerate(runs) if node in run)


def _readers(node: fx.Node) -> list[fx.Node]:
    """Users of a node, where the users of a size stand for the size: sizes are computed anew where they are needed."""
    readers: list[fx.Node] = []
    for user in node.users:
        readers += _readers(user) if _is_size(user) else [user]
    return readers


def _is_size(node: fx.Node) -> bool:
    if node.target is SIZE_OF:
        return True
    value = _value(node)
    return (
        value is not None
        and isinstance(value, (int, torch.SymInt, float, torch.SymFloat))
        and node.op == "call_function"
    )


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _fake(node: fx.Node) -> Tensor:
    value: Tensor = _value(node)
    with torch.no_grad():
        leaf = value.detach()
    return leaf.requires_grad_(value.requires_grad)


def _names(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    return tuple(n.name for n in nodes)


def _extract(
    captured: fx.GraphModule, run: Sequence[fx.Node], writes: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Copy a run of nodes into a graph of its own; returns it and the outside nodes that its placeholders stand for."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inside = set(run)
    inputs: list[fx.Node] = []

    def gather(node: fx.Node) -> None:
        if node in inside or node in inputs or node.op == "get_attr":
            return
        if _is_size(node):
            for source in node.all_input_nodes:
                gather(source)
        else:
            inputs.append(node)

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:
            for source in node.all_input_nodes:
                copy(source)
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        return copies[node]

    for node in run:
        for source in node.all_input_nodes:
            gather(source)
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in run:
        copy(node)
    graph.output(tuple(copies[n] for n in writes))
    return fx.GraphModule(captured, graph), inputs
