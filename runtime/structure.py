"""The relation tensors of a DGLGraph, computed once and kept as long as its structure lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gqc.runtime.relation import from_edges

if TYPE_CHECKING:
    from dgl import DGLGraph

_KEY = "gqc_relations"


def relations(graph: DGLGraph, device: torch.device | None = None) -> list[list[Tensor]]:
    """The relation of each canonical edge type, in the graph's order (docs/architecture.md, section Relations).

    The tensors are kept in the graph's structure object. DGL gives a graph a new one whenever its nodes or edges
    change, and graphs that share one (``local_var``, views of one graph) share the tensors, so the cache is never
    stale and dies with the structure.

    Args:
        graph: the graph.
        device: where the tensors are wanted, by default on ``graph.device``. Copies on another device are kept too, so
            a graph on the CPU serves a model on a GPU although its DGL may have been built without CUDA.

    Returns:
        One list of 8 contiguous tensors an edge type, in ``graph.idtype``.
    """
    structure = graph._graph
    cache: dict[Any, Any] = structure._cache
    if _KEY not in cache:
        cache[_KEY] = [_relation(structure, etype) for etype in range(structure.number_of_etypes())]
    found: list[list[Tensor]] = cache[_KEY]
    if device is None or device == graph.device:
        return found
    if (_KEY, device) not in cache:
        cache[_KEY, device] = [[part.to(device) for part in relation] for relation in found]
    copied: list[list[Tensor]] = cache[_KEY, device]
    return copied


def _relation(structure: Any, etype: int) -> list[Tensor]:
    formats = structure.formats()
    if len(formats["created"]) + len(formats["not created"]) < 3:
        return _from_restricted(structure, etype)
    src, dst, _ = structure.edges(etype, "eid")
    csc = structure.adjacency_matrix_tensors(etype, True, "csr")[2:]
    csr = structure.adjacency_matrix_tensors(etype, False, "csr")[2:]
    return [*_with_eids(csc), *_with_eids(csr), src.contiguous(), dst.contiguous()]


def _from_restricted(structure: Any, etype: int) -> list[Tensor]:
    """The user restricted the graph to some sparse formats (``DGLGraph.formats``); the backward pass needs all."""
    ends = structure.edges(etype)
    by_eid = torch.empty_like(ends[2], dtype=torch.int64)
    by_eid[ends[2].long()] = torch.arange(len(by_eid), device=by_eid.device)
    source, target = structure.metagraph.find_edge(etype)
    return from_edges(ends[0][by_eid], ends[1][by_eid], structure.num_nodes(source), structure.num_nodes(target))


def _with_eids(compressed: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    indptr, indices, eids = compressed
    if eids.shape[0] != indices.shape[0]:  # DGL leaves them out where they are 0, 1, 2, ...
        eids = torch.arange(indices.shape[0], dtype=indices.dtype, device=indices.device)
    return [indptr.contiguous(), indices.contiguous(), eids.contiguous()]
