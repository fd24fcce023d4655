"""Structure: what a forward computes from integer tensors alone (self-loops, degrees, normalisation).

It is the same as long as the graph is the same, and it is where PyG's convs meet data-dependent sizes. So it becomes
one eager island in front of the graph that remembers its results; what is left has no data-dependent size in it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import Tensor

from gqc.capture.example import Example, storage_key
from gqc.capture.islands import Island, StructureIsland
from gqc.capture.program import Program, is_argument_size
from gqc.capture.sizes import is_size
from gqc.runtime.memory import ByIdentity


def hoist_structure(graph: fx.Graph, example: Example) -> None:
    """Move structure into an island behind the placeholders."""
    structural = structural_nodes(graph, example)
    outside: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in structural or (is_size(node) and any(user in outside for user in node.users)):
            outside.add(node)
    results = [n for n in structural if _is_computed_tensor(n) and any(user in outside for user in n.users)]
    if not results or _written_after_use(graph, results, outside, example):
        return
    read = next(reversed(graph.nodes))  # nothing writes to a result once something outside has read it
    program = Program(results, example, read)
    compute = _Remembered(program, results, example, read)
    island = StructureIsland(program, compute, "structure", "depends on integer arguments only, computed once a graph")
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last_input):
        call = graph.call_function(island)
    with graph.inserting_before(call):
        local = {node: graph.node_copy(node) for node in (*program.tensors, *program.sizes) if node.op != "placeholder"}
    call.args = tuple(local.get(node, node) for node in (*program.tensors, *program.sizes))
    call.meta.update(val=[node.meta["val"] for node in results], custom=results[0].meta["custom"])
    with graph.inserting_after(call):
        for i, node in reversed(list(enumerate(results))):
            item = graph.call_function(operator.getitem, (call, i))
            item.meta.update(node.meta)
            node.replace_all_uses_with(item, delete_user_cb=outside.__contains__)
    for node in reversed(structural):
        if node.op not in ("placeholder", "get_attr") and not node.users:
            graph.erase_node(node)  # in-place writers too: all that they write to has moved


class _Remembered:
    """Computes structure, and anew only what depends on arguments that are not those of the last calls.

    What comes from a graph stays while the node numbers of a batch change.
    """

    def __init__(self, program: Program, results: list[fx.Node], example: Example, until: fx.Node) -> None:
        arguments = [*program.tensors, *program.sizes]
        together: dict[frozenset[fx.Node], list[int]] = {}
        for i, node in enumerate(results):
            read_by = example.ancestors([node], is_argument_size, until)
            together.setdefault(frozenset(a for a in arguments if a in read_by), []).append(i)
        self._count = len(results)
        self._parts = []
        for places in together.values():
            part = Program([results[i] for i in places], example, until)
            read = [arguments.index(node) for node in (*part.tensors, *part.sizes)]
            self._parts.append((ByIdentity(part.forward), read, places))

    def __call__(self, *args: Any) -> list[Tensor]:
        found: list[Any] = [None] * self._count
        with torch.no_grad():
            for remembered, read, places in self._parts:
                for place, value in zip(places, remembered(*(args[i] for i in read)), strict=True):
                    found[place] = value
        return found


def structural_nodes(graph: fx.Graph, example: Example) -> dict[fx.Node, None]:
    """Nodes, in order, that depend on integer arguments, sizes and constants only and draw no random numbers.

    Memory that anything else writes to is excluded, which may exclude further writers: repeat until it is stable.
    """
    spoiled: set[int] = set()
    while True:
        found = _closure(graph, example, spoiled)
        more = {key for key, writers in example.writers.items() if any(w not in found for w in writers)} - spoiled
        if not more:
            return found
        spoiled |= more


def _closure(graph: fx.Graph, example: Example, spoiled: set[int]) -> dict[fx.Node, None]:
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "output" or node.meta.get("random") or _touches(node, spoiled):
            continue
        if node.op == "placeholder":
            fake = node.meta["val"]
            fits = not (fake.is_floating_point() or fake.is_complex() or example.is_written(node))
        elif node.op == "get_attr":
            fits = bool(node.meta.get("constant")) and not example.is_written(node)
        elif isinstance(node.target, Island) and not node.target.pure:
            fits = False
        else:
            fits = is_argument_size(node) or all(source in found for source in node.all_input_nodes)
        if fits:
            found[node] = None
    return found


def _written_after_use(graph: fx.Graph, results: list[fx.Node], outside: set[fx.Node], example: Example) -> bool:
    """Whether a result changes in place after something outside has read it, so that the order of both matters."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in results:
        first_use = min(order[user] for user in node.users if user in outside)
        if any(order[w] > first_use for w in example.writers.get(storage_key(node.meta["val"]), ())):
            return True
    return False


def _touches(node: fx.Node, memory: set[int]) -> bool:
    return bool(memory) and any(
        isinstance(x, Tensor) and storage_key(x) in memory for x in pytree.tree_leaves(node.meta.get("val"))
    )


def _is_computed_tensor(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), Tensor)
