"""Readouts of batched graphs: reductions over runs of rows, written as message passing from rows to their run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import torch
from dgl.base import DGLError
from torch import Tensor

from gqc.capture.dgl.index import Relation
from gqc.capture.dgl.waist import copy_to_edges
from gqc.capture.graphs import Size


def segments(seglen: Tensor, rows: Size) -> Relation:
    """The relation from each of ``rows`` rows to the run that it stands in.

    Args:
        seglen: ``[B]`` lengths of the runs, which add up to ``rows``.
        rows: number of rows.
    """
    like: dict[str, Any] = {"dtype": seglen.dtype, "device": seglen.device}
    row = torch.arange(rows, **like)
    run = torch.repeat_interleave(torch.arange(seglen.shape[0], **like), seglen, output_size=rows)
    indptr = torch.cat([torch.zeros(1, **like), seglen.cumsum(0).to(seglen.dtype)])
    return [indptr, row, row, torch.arange(rows + 1, **like), run, row, row, run]


def segment_reduce(seglen: Tensor, value: Tensor, reducer: str = "sum") -> Tensor:
    """Replaces ``dgl.ops.segment_reduce``: ``[B, *F]`` from ``value`` [N, *F]; empty runs give 0."""
    relation = segments(seglen, value.shape[0])
    if reducer in ("max", "min"):
        return torch.ops.gqc.spmm_cmp(relation, "copy_lhs", reducer, value, None)[0]
    if reducer not in ("sum", "mean"):
        raise DGLError(f"reducer {reducer} not recognized.")
    total = torch.ops.gqc.spmm(relation, "copy_lhs", value, None)
    if reducer == "sum":
        return total
    return total / seglen.clamp(min=1).to(total.dtype).reshape([-1] + [1] * (value.dim() - 1))


def segment_softmax(seglen: Tensor, value: Tensor) -> Tensor:
    """Replaces ``dgl.ops.segment_softmax``: ``[N, *F]``, each run sums to 1."""
    return torch.ops.gqc.edge_softmax(segments(seglen, value.shape[0]), value)


def broadcast_nodes(graph: dgl.DGLGraph, graph_feat: Tensor, *, ntype: str | None = None) -> Tensor:
    """Replaces ``dgl.broadcast_nodes``: ``[N, *F]``, the row of its graph for each node."""
    return _broadcast(graph_feat, graph.batch_num_nodes(ntype), graph.num_nodes(ntype))


def broadcast_edges(graph: dgl.DGLGraph, graph_feat: Tensor, *, etype: Any = None) -> Tensor:
    """Replaces ``dgl.broadcast_edges``: ``[E, *F]``, the row of its graph for each edge."""
    return _broadcast(graph_feat, graph.batch_num_edges(etype), graph.num_edges(etype))


def _broadcast(feat: Tensor, seglen: Tensor, rows: Size) -> Tensor:
    if feat.shape[0] != seglen.shape[0] and isinstance(seglen.shape[0], int) and seglen.shape[0] == 1:
        feat = feat.unsqueeze(0)
    return copy_to_edges(segments(seglen, rows), feat, "v")


def topk_on(
    graph: dgl.DGLGraph, typestr: str, feat: str, k: int, descending: bool, sortby: int | None, ntype_or_etype: Any
) -> tuple[Tensor, Tensor]:
    """Replaces the common part of ``dgl.topk_nodes`` and ``dgl.topk_edges``.

    Returns:
        The ``k`` first rows of each graph, ``[B, k, D]`` padded with 0, and their positions inside the graph (with
        ``sortby=None`` each feature is ranked on its own and positions are ``[B, k, D]``, else ``[B, k]``).
    """
    lengths: Callable[[Any], Tensor] = getattr(graph, f"batch_num_{typestr}")
    values = getattr(graph, typestr)[ntype_or_etype].data[feat]
    if values.dim() > 2:
        raise DGLError(f"Only support {typestr} feature `{feat}` with dimension less than or equal to 2")
    values = values.unsqueeze(-1) if values.dim() == 1 else values
    seglen = lengths(ntype_or_etype)
    indptr, *_, run = segments(seglen, values.shape[0])
    keys = values if sortby is None else values[:, sortby].unsqueeze(-1)
    order = keys.argsort(dim=0, descending=descending, stable=True)
    order = order.gather(0, run[order].argsort(dim=0, stable=True))
    rank = torch.arange(k, device=values.device)
    present = rank < seglen.unsqueeze(-1)
    position = torch.where(present, indptr[:-1].unsqueeze(-1) + rank, 0)
    rows = order[position]
    local = torch.where(present.unsqueeze(-1), rows - indptr[:-1].reshape(-1, 1, 1), 0)
    if sortby is None:
        picked = values.gather(0, rows.flatten(0, 1)).reshape(rows.shape)
    else:
        picked, local = values[rows.squeeze(-1)], local.squeeze(-1)
    return torch.where(present.unsqueeze(-1), picked, 0.0), local
