"""A graph as GraphML, which networkx, Gephi and yEd read."""

from __future__ import annotations

import networkx  # type: ignore[import-untyped]

from gqc.dump.snapshot import Snapshot


def graphml(snapshot: Snapshot) -> str:
    """Nodes carry what the drawing shows; an edge leads from a value to its reader.

    Attributes of an edge: ``nbytes`` of the value at the example call; ``saved``, whether it crosses from forward to
    backward; ``quantized``, whether the reader gets integers.
    """
    saved = {s.name for s in snapshot.saved}
    graph = networkx.DiGraph()
    for node in snapshot.nodes:
        graph.add_node(
            node.name,
            op=node.op,
            meaning=node.meaning,
            type=node.type,
            shape=node.shape,
            nbytes=node.nbytes,
            half=node.half,
            module=node.module,
            line=node.line,
            kind=node.kind,
            form=node.form,
            kept=node.kept,
            precision=node.precision,
            scale=node.scale,
        )
    records = {n.name: n for n in snapshot.nodes}
    for node in snapshot.nodes:
        for name in node.inputs:
            crosses = name in saved and node.name in snapshot.backward
            quantized = records[name].precision == "int8" and records[name].type.startswith("int8")
            graph.add_edge(name, node.name, nbytes=records[name].nbytes, saved=crosses, quantized=quantized)
    return "\n".join(networkx.generate_graphml(graph)) + "\n"
