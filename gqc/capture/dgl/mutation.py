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
from gqc.runtime.relation import DST, SRC, num_dst, num_src


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
    relation = index.relations[etid]
    if not ((u < num_src(relation)).all() & (v < num_dst(relation)).all()):
        raise CaptureError("add_edges adds nodes; add them to the graph before the model is called")
    _replace(graph, etid, build_relation(torch.cat([relation[SRC], u]), torch.cat([relation[DST], v]), relation))
    frame = graph._edge_frames[etid]
    if data is None:
        frame.add_rows(u.shape[0])
    else:
        frame.append(data)
    graph._reset_cached_info()


def remove_edges(graph: dgl.DGLGraph, eids: Any, etype: Any = None, store_ids: bool = False) -> None:
    """Replaces ``DGLGraph.remove_edges``."""
    etid = graph.get_etype_id(etype)
    eids = prepare_tensor(graph, eids, "u")
    stays = torch.ones_like(graph._graph.relations[etid][SRC], dtype=torch.bool).index_fill(0, eids.long(), False)
    _keep_edges(graph, etid, stays, store_ids)


def remove_self_loop(graph: dgl.DGLGraph, etype: Any = None) -> dgl.DGLGraph:
    """Replaces ``dgl.remove_self_loop``."""
    source, _, target = graph.to_canonical_etype(etype)
    if source != target:
        raise DGLError(f"remove_self_loop does not support unidirectional bipartite graphs: {etype}.")
    etid = graph.get_etype_id(etype)
    relation = graph._graph.relations[etid]
    result = clone(graph)
    _keep_edges(result, etid, relation[SRC] != relation[DST], store_ids=False)
    return result


def _keep_edges(graph: dgl.DGLGraph, etype: int, stays: Tensor, store_ids: bool) -> None:
    if graph._batch_num_edges is not None:
        raise CaptureError("edges of a batched graph are removed; remove them before batching")
    relation = graph._graph.relations[etype]
    kept = stays.nonzero().flatten()
    _replace(graph, etype, build_relation(relation[SRC][kept], relation[DST][kept], relation))
    eids = kept.to(relation[SRC].dtype)
    graph._edge_frames = list(graph._edge_frames)
    graph._edge_frames[etype] = frame = graph._edge_frames[etype].subframe(eids)
    if store_ids:
        frame[dgl.EID] = eids


def _replace(graph: dgl.DGLGraph, etype: int, relation: Relation) -> None:
    relations: list[Any] = list(graph._graph.relations)
    relations[etype] = relation
    graph._graph = graph._graph.with_relations(relations)


def empty_frame(rows: Size, columns: dict[str, Tensor]) -> Frame:
    """A frame of ``rows`` rows that holds ``columns``, which are known to fit."""
    frame = Frame(num_rows=rows)
    for name, tensor in columns.items():
        frame._columns[name] = dgl.frame.Column(tensor)
    return frame
