"""DGL graphs as arguments of a captured model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import dgl
import torch
from dgl.frame import Frame, LazyFeature
from torch import Tensor

from gqc.capture.dgl.index import Metagraph, TracedIndex
from gqc.capture.dgl.mutation import empty_frame
from gqc.capture.dgl.patches import patched
from gqc.capture.graphs import Size
from gqc.errors import CaptureError
from gqc.runtime.memory import ByIdentity
from gqc.runtime.relation import num_dst, num_edges, num_src
from gqc.runtime.structure import relations

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer

_RELATION = ("csc_indptr", "csc_indices", "csc_eids", "csr_indptr", "csr_indices", "csr_eids", "src", "dst")
_STATIC = (
    "_canonical_etypes",
    "_dsttypes_invmap",
    "_etype2canonical",
    "_etypes",
    "_etypes_invmap",
    "_is_unibipartite",
    "_ntypes",
    "_srctypes_invmap",
)


@dataclass(frozen=True)
class GraphSchema:
    """All of a graph that a capture takes for granted.

    Attributes:
        kind: class of the graph; a block's is another than a graph's.
        ntypes, etypes: type names in DGL's order.
        ends: source and destination type of each relation.
        columns: names of the columns of each node type, then of each edge type.
        batched: whether it is made of several graphs.
        fields: the graph's attributes that follow from the above, for its stand-in.
    """

    kind: type[dgl.DGLGraph]
    ntypes: tuple[str, ...]
    etypes: tuple[tuple[str, str, str], ...]
    ends: tuple[tuple[int, int], ...]
    columns: tuple[tuple[str, ...], ...]
    batched: bool
    fields: dict[str, Any] = field(compare=False, repr=False)

    def isolated(self) -> list[int]:
        """Node types without relations: no relation tensor tells how many nodes they have."""
        used = {ntype for ends in self.ends for ntype in ends}
        return [ntype for ntype in range(len(self.ntypes)) if ntype not in used]


class DGLAdapter:
    """Implements :class:`gqc.capture.graphs.GraphAdapter`.

    Tensors are named ``relation.<etype>.<part>``, ``nodes.<ntype>`` ([0, N], for types without relations),
    ``batch.n.<ntype>``, ``batch.e.<etype>``, columns ``n.<ntype>.<column>`` and ``e.<etype>.<column>``; types are
    numbered in DGL's order.
    """

    def matches(self, obj: object) -> bool:
        return isinstance(obj, dgl.DGLGraph)

    def schema(self, graph: dgl.DGLGraph) -> GraphSchema:
        sources, targets = graph._srctypes_invmap, graph._dsttypes_invmap
        etypes = tuple(graph._canonical_etypes)
        return GraphSchema(
            type(graph),
            tuple(graph._ntypes),
            etypes,
            tuple((sources[s], targets[d]) for s, _, d in etypes),
            tuple(tuple(_columns(frame)) for frame in (*graph._node_frames, *graph._edge_frames)),
            graph._batch_num_nodes is not None,
            {name: vars(graph)[name] for name in _STATIC},
        )

    def tensors(self, graph: dgl.DGLGraph, device: torch.device | None = None) -> dict[str, Tensor]:
        parts = chain.from_iterable(relations(graph, device))
        found = dict(zip(_relation_names(len(graph._etypes)), parts, strict=True))
        if len(graph._ntypes) > 1:
            like = next(iter(found.values()))
            for ntype in self.schema(graph).isolated():
                found[f"nodes.{ntype}"] = like.new_empty((0, graph._graph.num_nodes(ntype)))
        others: dict[str, Tensor] = {}
        if graph._batch_num_nodes is not None:
            for i, ntype in enumerate(graph.ntypes):
                others[f"batch.n.{i}"] = graph.batch_num_nodes(ntype)
            for i, etype in enumerate(graph.canonical_etypes):
                others[f"batch.e.{i}"] = graph.batch_num_edges(etype)
        others.update(_all_columns(graph))
        if device is not None:
            others = {name: _on(device, x) for name, x in others.items()}
        return found | others

    def dynamic_axes(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        return (1,) if name.startswith("nodes.") else (0,)

    def ties(self, schema: GraphSchema, tensors: dict[str, Tensor]) -> Iterable[tuple[Size, Size]]:
        rows: dict[str, list[Size]] = {}
        for etype, ((source, target), relation) in enumerate(zip(schema.ends, _relations(tensors), strict=True)):
            for part in (1, 2, 4, 5, 6, 7):
                rows.setdefault(f"e.{etype}", []).append(relation[part].shape[0])
            rows.setdefault(f"n.{source}", []).append(num_src(relation))
            rows.setdefault(f"n.{target}", []).append(num_dst(relation))
        for name, tensor in tensors.items():
            kind, number, *_ = name.split(".", 2)
            if kind == "nodes":
                rows.setdefault(f"n.{number}", []).append(tensor.shape[1])
            elif kind == "batch":
                rows.setdefault("batch", []).append(tensor.shape[0])
            elif kind in ("n", "e"):
                rows.setdefault(f"{kind}.{number}", []).append(tensor.shape[0])
        for equal in rows.values():
            yield from ((equal[0], other) for other in equal[1:])

    def stand_in(self, schema: GraphSchema, tensors: dict[str, Tensor], tracer: Tracer) -> dgl.DGLGraph:
        relations = _relations(tensors)
        sizes: list[Size] = [0] * len(schema.ntypes)
        for (source, target), relation in zip(schema.ends, relations, strict=True):
            sizes[source], sizes[target] = num_src(relation), num_dst(relation)
        for ntype in schema.isolated():
            sizes[ntype] = tensors[f"nodes.{ntype}"].shape[1]
        graph = object.__new__(schema.kind)
        vars(graph).update(schema.fields)
        graph._graph = TracedIndex(Metagraph(len(schema.ntypes), schema.ends), relations, sizes, tracer)
        edge_counts = [num_edges(relation) for relation in relations]
        graph._node_frames = [empty_frame(n, _given(tensors, f"n.{i}.")) for i, n in enumerate(sizes)]
        graph._edge_frames = [empty_frame(n, _given(tensors, f"e.{i}.")) for i, n in enumerate(edge_counts)]
        graph._batch_num_nodes = graph._batch_num_edges = None
        if schema.batched:
            graph._batch_num_nodes = {name: tensors[f"batch.n.{i}"] for i, name in enumerate(schema.ntypes)}
            graph._batch_num_edges = {name: tensors[f"batch.e.{i}"] for i, name in enumerate(schema.etypes)}
        graph._gqc_given = (graph._graph, _all_columns(graph))
        return graph

    def effects(self, stand_in: dgl.DGLGraph) -> dict[str, Tensor | None]:
        structure, given = stand_in._gqc_given
        if stand_in._graph is not structure:
            raise CaptureError("forward adds or removes nodes or edges of its argument; let it work on graph.clone()")
        now = _all_columns(stand_in)
        written: dict[str, Tensor | None] = {k: x for k, x in now.items() if given.get(k) is not x}
        return written | dict.fromkeys(k for k in given if k not in now)

    def write_back(self, graph: dgl.DGLGraph, values: dict[str, Tensor | None]) -> None:
        for name, value in values.items():
            kind, number, column = name.split(".", 2)
            frame = (graph._node_frames if kind == "n" else graph._edge_frames)[int(number)]
            if value is None:
                del frame[column]
            else:
                frame[column] = value.to(graph.device)

    def local(self, graph: dgl.DGLGraph) -> dgl.DGLGraph:
        return graph.local_var()

    def patches(self, tracer: Tracer) -> AbstractContextManager[None]:
        return patched(tracer)


_copy_on = ByIdentity(lambda x, device: x.to(device), capacity=64)
"""Copies of columns on another device, each as long as the column itself."""


def _on(device: torch.device, column: Tensor) -> Tensor:
    if column.device == device:
        return column
    return column.to(device) if column.requires_grad else _copy_on(column, device)


@cache
def _relation_names(num_etypes: int) -> list[str]:
    return [f"relation.{etype}.{part}" for etype in range(num_etypes) for part in _RELATION]


def _columns(frame: Frame) -> Iterator[str]:
    return (name for name, column in frame._columns.items() if not isinstance(column, LazyFeature))


def _all_columns(graph: dgl.DGLGraph) -> dict[str, Tensor]:
    return {
        f"{kind}.{i}.{name}": frame[name]
        for kind, frames in (("n", graph._node_frames), ("e", graph._edge_frames))
        for i, frame in enumerate(frames)
        for name in _columns(frame)
    }


def _given(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _relations(tensors: dict[str, Tensor]) -> list[list[Tensor]]:
    flat: Sequence[Tensor] = [x for name, x in tensors.items() if name.startswith("relation.")]
    return [list(flat[i : i + len(_RELATION)]) for i in range(0, len(flat), len(_RELATION))]
