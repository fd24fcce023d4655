"""The output of a model's first GNN layer on a real call, for ``Policy.bits="auto"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from gqc.autocast import autocast_off
from gqc.capture import Captured, Island
from gqc.capture.islands import StructureIsland
from gqc.generators import generators_kept
from gqc.passes.choose_bits import BitRule
from gqc.passes.nodes import is_float, needed_for, origin

_SCATTERS = ("index_add", "index_reduce", "scatter_add", "scatter_reduce")
AGGREGATIONS = frozenset({"spmm", "spmm_cmp", "sddmm", "edge_softmax", *_SCATTERS, *(f"{name}_" for name in _SCATTERS)})
"""Names of the functions that a GNN layer is known by: graph ops, and aggregation as PyG and plain torch write it."""


def measure(model: nn.Module, captured: Captured, flat: Sequence[Any]) -> BitRule:
    """Apply Tango's rule to a call: Error_X of the first GNN layer's output, computed in full precision.

    Only what the layer depends on runs, without gradients; torch's generator and the model's buffers stay as they are.

    Args:
        model: the eager model.
        captured: its capture.
        flat: the call's tensors, one a placeholder.
    """
    aggregation = next((n for n in captured.graph.graph.nodes if _aggregates(n)), None)
    if aggregation is None:
        return BitRule(8, "the model has no GNN layer, so there is nothing to measure")
    layer = _layer(model, origin(aggregation).module)
    output = _output(aggregation, layer) if layer else aggregation
    name = f"the output of {layer}" if layer else f"the first aggregation, {aggregation.name}"
    needed = needed_for([output])
    island = next((n.target for n in needed if _is_eager(n)), None)
    if island is not None:
        return BitRule(8, f"{name} lies behind {island.name}, which runs eagerly and would run twice")
    with torch.no_grad(), autocast_off(), generators_kept():
        x = _up_to(captured.graph, output, needed)(*flat)
    return BitRule.of(x, name)


def _aggregates(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.removeprefix("autocast_").split(".")[0] in AGGREGATIONS


def _layer(model: nn.Module, module: str) -> str:
    """The innermost module around ``module`` that has parameters, ``""`` if that is the model itself.

    An aggregation module without weights of its own, as PyG has them, is no layer.
    """
    parts = module.split(".") if module else []
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        if next(model.get_submodule(path).parameters(), None) is not None:
            return path
    return ""


def _output(aggregation: fx.Node, layer: str) -> fx.Node:
    """The last value that the call of ``layer`` around ``aggregation`` gives to what follows."""
    run = []
    node = aggregation
    while node.op != "output":
        if is_float(node) and not _inside(node, layer):
            break
        run.append(node)
        node = node.next
    inside = set(run)
    given = [n for n in run if is_float(n) and _inside(n, layer) and any(u not in inside for u in n.users)]
    return given[-1] if given else aggregation


def _inside(node: fx.Node, layer: str) -> bool:
    module = origin(node).module
    return module == layer or module.startswith(f"{layer}.")


def _is_eager(node: fx.Node) -> bool:
    return isinstance(node.target, Island) and not (node.target.pure or isinstance(node.target, StructureIsland))


def _up_to(captured: fx.GraphModule, output: fx.Node, needed: set[fx.Node]) -> fx.GraphModule:
    """The part of a captured graph that computes ``output``, on copies of what it may update."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            written = node.op == "placeholder" and any(user.meta.get("writes") for user in node.users)
            if written or node.op == "get_attr":
                copies[node] = graph.call_method("clone", (copies[node],))
    graph.output(copies[output])
    return fx.GraphModule(captured, graph)
