"""Edge user-defined functions: one call over all edges, columns of the end nodes gathered when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dgl
from dgl.base import is_all
from dgl.frame import Frame
from dgl.udf import EdgeBatch
from torch import Tensor

from gqc.capture.dgl.waist import copy_to_edges


class GatheredColumns(Mapping[str, Tensor]):
    """``edges.src`` or ``edges.dst``: the columns of a node frame, one row an edge."""

    def __init__(self, frame: Frame, gather: Callable[[Tensor], Tensor]) -> None:
        self._frame = frame
        self._gather = gather
        self._read: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._read:
            self._read[name] = self._gather(self._frame[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


def invoke_edge_udf(
    graph: dgl.DGLGraph,
    eid: Any,
    etype: tuple[str, str, str],
    func: Callable[[EdgeBatch], Any],
    *,
    orig_eid: Any = None,
) -> Any:
    """Replaces ``dgl.core.invoke_edge_udf``."""
    index = graph._graph
    etid = graph.get_etype_id(etype)
    source, target = index.metagraph.find_edge(etid)
    relation, edata = index.relations[etid], graph._edge_frames[etid]
    if is_all(eid):
        _, _, eid = index.edges(etid)
        gather = [lambda x, end=end: copy_to_edges(relation, x, end) for end in ("u", "v")]
    else:
        src, dst, _ = index.find_edges(etid, eid)
        gather = [lambda x, ids=ids: x.index_select(0, ids) for ids in (src, dst)]
        edata = edata.subframe(eid)
    batch = EdgeBatch(
        graph,
        eid if orig_eid is None else orig_eid,
        etype,
        GatheredColumns(graph._node_frames[source], gather[0]),
        edata,
        GatheredColumns(graph._node_frames[target], gather[1]),
    )
    return func(batch)
