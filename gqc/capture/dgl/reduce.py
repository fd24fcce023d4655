"""Reduce user-defined functions: lowered to operations on edges, else run eagerly over nodes of equal in-degree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import torch
import torch.utils._pytree as pytree
from dgl.udf import NodeBatch
from torch import Tensor
from torch._subclasses import FakeTensor

from gqc.capture.dgl.index import Relation, TracedIndex
from gqc.capture.dgl.mailbox import Mailbox, NotEdgewise
from gqc.errors import CaptureError
from gqc.runtime.relation import CSC_EIDS, CSC_INDPTR

ReduceFunction = Callable[[NodeBatch], dict[str, Any]]


def invoke_udf_reduce(
    graph: dgl.DGLGraph, func: ReduceFunction, msgdata: Any, *, orig_nid: Tensor | None = None
) -> dict[str, Tensor]:
    """Replaces ``dgl.core.invoke_udf_reduce``: the function's results, one row a node, 0 for nodes without messages."""
    index: TracedIndex = graph._graph
    relation = index.relations[0]
    ntype = graph.dsttypes[0]
    ntid = graph.get_ntype_id_from_dst(ntype)
    nodes = index.nodes(ntid) if orig_nid is None else orig_nid
    messages = dict(msgdata.items())
    if isinstance(index.num_edges(0), int) and index.num_edges(0) == 0:
        return {}
    try:
        mail = {name: Mailbox(relation, values) for name, values in messages.items()}
        out = func(NodeBatch(graph, nodes, ntype, graph._node_frames[ntid], msgs=mail))
        return _zero_where_empty(relation, out)
    except Exception as error:
        # Whatever went wrong, the function gets real mailboxes next; one that is at fault itself fails there too.
        reason = str(error) if isinstance(error, NotEdgewise) else f"its reduce function fails on edges ({error})"
    return _reduce_eagerly(index, func, reason, nodes, ntype, messages, dict(graph._node_frames[ntid].items()))


def _zero_where_empty(relation: Relation, out: dict[str, Any]) -> dict[str, Tensor]:
    indptr = relation[CSC_INDPTR]
    has_messages = indptr[1:] != indptr[:-1]
    results = {}
    for name, value in out.items():
        if not isinstance(value, Tensor):
            raise NotEdgewise("the reduce function returns its messages unreduced")
        results[name] = torch.where(has_messages.reshape([-1] + [1] * (value.dim() - 1)), value, 0)
    return results


def _reduce_eagerly(
    index: TracedIndex,
    func: ReduceFunction,
    reason: str,
    nodes: Tensor,
    ntype: str,
    messages: dict[str, Tensor],
    node_data: dict[str, Tensor],
) -> dict[str, Tensor]:
    _refuse_captured_tensors(func)
    relation = index.relations[0]
    given, spec = pytree.tree_flatten((messages, node_data))
    names: list[str] = []

    def run(indptr: Tensor, eids: Tensor, nodes: Tensor, *values: Tensor) -> list[Tensor]:
        real_messages, real_data = pytree.tree_unflatten(list(values), spec)
        results = reduce_by_degree(func, indptr, eids, nodes, ntype, real_messages, real_data)
        names[:] = results
        return list(results.values())

    name = getattr(func, "__qualname__", type(func).__name__)
    arguments = relation[CSC_INDPTR], relation[CSC_EIDS], nodes, *given
    reason = f"{reason}, so nodes are reduced degree by degree"
    fakes = index.island(run, *arguments, name=name, reason=reason, pure=False)
    expected = nodes.shape[0]
    for fake in fakes:
        torch._check(fake.shape[0] == expected)
    return dict(zip(names, fakes, strict=True))


def reduce_by_degree(
    func: ReduceFunction,
    indptr: Tensor,
    eids: Tensor,
    nodes: Tensor,
    ntype: str,
    messages: dict[str, Tensor],
    node_data: dict[str, Tensor],
) -> dict[str, Tensor]:
    """What DGL computes: one call for each in-degree, messages of a node in the order of edge ids.

    Args:
        func: the reduce function.
        indptr, eids: the relation's CSC form.
        nodes: ``[Nd]`` ids that the function sees.
        ntype: type of the nodes.
        messages: ``[E, *F]`` by name.
        node_data: ``[Nd, *F]`` by name.

    Returns:
        ``[Nd, *F]`` by name; rows of nodes without messages are 0.
    """
    degrees = indptr.diff()
    buckets: list[Tensor] = []
    results: list[dict[str, Tensor]] = []
    for degree in degrees.unique().tolist():
        if degree == 0:
            continue
        bucket = (degrees == degree).nonzero().flatten()
        positions = indptr[bucket].unsqueeze(1) + torch.arange(degree, device=indptr.device)
        order = eids[positions].sort(1).values.flatten().long()
        mail = {name: x[order].unflatten(0, (len(bucket), degree)) for name, x in messages.items()}
        data = {name: x[bucket] for name, x in node_data.items()}
        results.append(func(NodeBatch(None, nodes[bucket], ntype, data, msgs=mail)))
        buckets.append(bucket)
    rows = torch.cat(buckets)
    merged = {name: torch.cat([result[name] for result in results]) for name in results[0]}
    return {
        name: value.new_zeros((degrees.shape[0], *value.shape[1:])).index_copy(0, rows, value)
        for name, value in merged.items()
    }


def _refuse_captured_tensors(func: Any) -> None:
    """An eager function cannot see tensors that exist only in the recording."""
    cells = [cell.cell_contents for cell in getattr(func, "__closure__", None) or ()]
    if any(isinstance(x, FakeTensor) for x in pytree.tree_leaves(cells)):
        raise CaptureError(
            "the reduce function uses a tensor of the surrounding forward; read it from nodes.data instead"
        )
