"""Find message passing in a recorded graph."""

from __future__ import annotations

import torch.fx as fx

from gqc.capture.messages.calls import MEAN, SUM, Gather, Scatter, name_of, read_gather, read_scatter, value
from gqc.capture.messages.canonical import Canonical
from gqc.capture.messages.edges import EdgeFinder, NoEdges
from gqc.capture.messages.rewrite import Rewrite, left_alone
from gqc.capture.messages.softmax import read_softmax
from gqc.capture.structure import structural_nodes
from gqc.capture.tracer import Tracer
from gqc.passes.report import Decision

_LARGEST = "a maximum's gradient is PyTorch's: it is shared among equal messages"


def find_messages(tracer: Tracer) -> list[Decision]:
    """Put graph ops in the place of gathers and scatters along edges, before the graph is differentiated.

    Does: a scatter that sums up messages by the destinations of edges becomes ``gqc.spmm``; it takes in what computes
        the messages, if that is a gather at the sources, or its product with a weight an edge. A softmax composed of
        scatters becomes ``gqc.edge_softmax``, sums and products of gathers at both ends become ``gqc.sddmm``, other
        gathers along these edges too. The gradients of these ops are graph ops again.
    Ensures: the same values up to the order of sums. Only edges that depend on integer arguments and constants count:
        their relation is structure and is remembered while the tensors stay the same.
    """
    graph, example = tracer.graph, tracer.example
    structural = structural_nodes(graph, example)
    gathers: dict[fx.Node, Gather] = {}
    scatters: dict[fx.Node, Scatter] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or node in structural:
            continue
        scatter = read_scatter(node, example)
        gather = None if scatter is not None else read_gather(node, example)
        if scatter is not None:
            scatters[node] = scatter
        elif gather is not None:
            gathers[node] = gather
    if not scatters:
        return []
    canonical = Canonical(structural, example)
    divisions = (node for node in graph.nodes if name_of(node) == "div" and node not in structural)
    softmaxes = {n: s for n in divisions if (s := read_softmax(n, gathers, scatters, canonical, example)) is not None}
    inner = {s.node for softmax in softmaxes.values() for s in softmax.inner}
    finder = EdgeFinder(gathers, softmaxes, structural, canonical, tracer.sizes)
    left = _sort([s for s in scatters.values() if s.node not in inner], finder)
    left = _sort([scatter for scatter, _ in left], finder)  # some run along edges that only others tell
    decisions = [left_alone(scatter, why) for scatter, why in left]
    for edges in finder.found.values():
        decisions += Rewrite(tracer, edges, scatters).run()
    return decisions


def _sort(scatters: list[Scatter], finder: EdgeFinder) -> list[tuple[Scatter, str]]:
    """Find the edges of scatters; those that have none, with the reason."""
    left = []
    for scatter in scatters:
        try:
            if scatter.reduce not in (SUM, MEAN) and value(scatter.messages).requires_grad:  # type: ignore[union-attr]
                raise NoEdges(_LARGEST)
            finder.add(scatter)
        except NoEdges as why:
            left.append((scatter, str(why)))
    return left
