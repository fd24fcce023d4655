"""Graphs that a forward makes from its argument: copies, added and removed edges, self-loops."""

from __future__ import annotations

import copy
from typing import Any

import dgl
import torch
from dgl.base import DGLError
from dgl.frame import Frame
from dgl.utils import prepare_tensor
from torch import Tensor

from gqc.capture.dgl.index import Relation, TracedIndex, build_relation
from gqc.capture.graphs import Size
from gqc.errors import CaptureError
from gqc.runtime.relation import DST, SRC
from gqc.runtime.structure import without_self_loops


def clone(graph: dgl.DGLGraph) -> dgl.DGLGraph:
    """Replaces ``DGLGraph.clone``. Structures are never changed in place, so the copy may share this one's."""
    copied = copy.copy(graph)
    copied._node_frames = [frame.clone() for frame in graph._node_frames]
    copied._edge_frames = [frame.clone() for frame in graph._edge_frames]
    copied._batch_num_nodes = copy.copy(graph._batch_num_nodes)
    copied._batch_num_edges = copy.copy(graph._batch_num_edges)
    return copied


def add_edges(graph: dgl.DGLGraph, u: Any, v: Any, data: Any = None, etype: Any = None) -> None:
    """Replaces ``DGLGraph.add_edges``, for ends that exist."""
    index: TracedIndex = graph._graph
    u, v = prepare_tensor(graph, u, "u"), prepare_tensor(graph, v, "v")
    etid = graph.get_etype_id(etype)
    source, target = index.metagraph.find_edge(etid)
    relation = index.relations[etid]
    if u is v and source == target and u is index.nodes(source):
        changed = list(torch.ops.gqc.add_self_loops(relation))
    else:
        if not ((u < index.sizes[source]).all() & (v < index.sizes[target]).all()):
            raise CaptureError("add_edges adds nodes; add them to the graph before the model is called")
        changed = build_relation(torch.cat([relation[SRC], u]), torch.cat([relation[DST], v]), relation)
    _replace(graph, etid, changed)
    frame = graph._edge_frames[etid]
    if data is None:
        frame.add_rows(u.shape[0])
    else:
        frame.append(data)
    graph._reset_cached_info()


def remove_edges(graph: dgl.DGLGraph, eids: Any, etype: Any = None, store_ids: bool = False) -> None:
    """Replaces ``DGLGraph.remove_edges``."""
    index: TracedIndex = graph._graph
    etid = graph.get_etype_id(etype)
    _refuse_batched(graph)
    eids = prepare_tensor(graph, eids, "u")
    relation = index.relations[etid]
    stays = torch.ones_like(relation[SRC], dtype=torch.bool).index_fill(0, eids.long(), False)
    kept = stays.nonzero().flatten()
    _replace(graph, etid, build_relation(relation[SRC][kept], relation[DST][kept], relation))
    _keep_rows(graph, etid, kept.to(relation[SRC].dtype), store_ids)


def remove_self_loop(graph: dgl.DGLGraph, etype: Any = None) -> dgl.DGLGraph:
    """Replaces ``dgl.remove_self_loop``."""
    source, _, target = graph.to_canonical_etype(etype)
    if source != target:
        raise DGLError(f"remove_self_loop does not support unidirectional bipartite graphs: {etype}.")
    _refuse_batched(graph)
    index: TracedIndex = graph._graph
    etid = graph.get_etype_id(etype)
    relation = index.relations[etid]
    reason = "the number of edges that stay depends on data"
    *changed, kept = index.island(_without_self_loops, *relation, name="remove_self_loop", reason=reason, pure=True)
    for tensor in changed[1:3] + changed[4:8]:
        torch._check(tensor.shape[0] == kept.shape[0])
    for old, new in ((relation[0], changed[0]), (relation[3], changed[3])):
        torch._check(new.shape[0] == old.shape[0])
    result = clone(graph)
    _replace(result, etid, changed)
    _keep_rows(result, etid, kept, store_ids=False)
    return result


def _without_self_loops(*relation: Tensor) -> list[Tensor]:
    return without_self_loops(relation)


def _replace(graph: dgl.DGLGraph, etype: int, relation: Relation) -> None:
    relations: list[Any] = list(graph._graph.relations)
    relations[etype] = relation
    graph._graph = graph._graph.with_relations(relations)


def _keep_rows(graph: dgl.DGLGraph, etype: int, eids: Tensor, store_ids: bool) -> None:
    graph._edge_frames = list(graph._edge_frames)
    graph._edge_frames[etype] = frame = graph._edge_frames[etype].subframe(eids)
    if store_ids:
        frame[dgl.EID] = eids


def _refuse_batched(graph: dgl.DGLGraph) -> None:
    if graph._batch_num_edges is not None:
        raise CaptureError("edges of a batched graph are removed; remove them before batching")


def empty_frame(rows: Size, columns: dict[str, Tensor]) -> Frame:
    """A frame of ``rows`` rows that holds ``columns``, which are known to fit."""
    frame = Frame(num_rows=rows)
    for name, tensor in columns.items():
        frame._columns[name] = dgl.frame.Column(tensor)
    return frame
