"""The graph after a pass as GraphML, which networkx, Gephi and yEd read."""

from __future__ import annotations

import networkx  # type: ignore[import-untyped]

from gqc.dump.snapshot import Snapshot
from gqc.joint import JointGraph
from gqc.passes.computation_graph import ComputationGraph


def graphml(joint: JointGraph, snapshot: Snapshot) -> str:
    """The :class:`ComputationGraph`, where each node has its source ``line`` and each tensor ``saved``: the bytes that
    the forward keeps of it for the backward (0: none, or the caller holds it).
    """
    graph = ComputationGraph.of(joint).graph
    saved = {s.name: s.nbytes for s in snapshot.saved}
    lines = {n.name: n.line for n in snapshot.nodes}
    for name, attributes in graph.nodes(data=True):
        attributes["line"] = lines.get(name.removesuffix("()"), "")
        if attributes["type"] == "tensor":
            attributes["saved"] = saved.get(name, 0)
    return "\n".join(networkx.generate_graphml(graph)) + "\n"
