"""The structure of a graph under capture: what DGL asks of a ``HeteroGraphIndex``, answered with recorded tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import dgl
import torch
from dgl.heterograph_index import HeteroGraphIndex
from dgl.utils import to_dgl_context
from torch import Tensor

from gqc.capture.graphs import Size
from gqc.errors import CaptureError
from gqc.runtime.relation import CSC_INDPTR, CSR_INDPTR, DST, SRC, num_dst, num_edges, num_src, reverse

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer

Relation = list[Tensor]


@dataclass(frozen=True)
class Metagraph:
    """Which node types the relations connect.

    Attributes:
        num_ntypes: number of node types.
        ends: source and destination type of each relation.
    """

    num_ntypes: int
    ends: tuple[tuple[int, int], ...]

    def num_nodes(self) -> int:
        return self.num_ntypes

    def num_edges(self) -> int:
        return len(self.ends)

    def find_edge(self, relation: int) -> tuple[int, int]:
        return self.ends[relation]

    def edges(self, order: str = "eid") -> tuple[list[int], list[int], list[int]]:
        return [s for s, _ in self.ends], [d for _, d in self.ends], list(range(len(self.ends)))

    def bipartition(self) -> tuple[list[int], list[int]] | None:
        """The source and the destination types if no type is both, as DGL's ``FindSrcDstNtypes``."""
        sources, targets = {s for s, _ in self.ends}, {d for _, d in self.ends}
        if sources & targets:
            return None
        isolated = [t for t in range(self.num_ntypes) if t not in sources | targets]
        return sorted([*sources, *isolated]), sorted(targets)


class TracedIndex:
    """Stands in for DGL's ``HeteroGraphIndex`` under a real ``DGLGraph`` while a model is captured.

    DGL's Python runs over it unchanged. Queries whose answer is a recorded tensor or a size are answered here; the
    message-passing kernels are replaced one level above (:mod:`gqc.capture.dgl.waist`); everything else raises
    :class:`CaptureError`.

    Attributes:
        metagraph: node types that the relations connect.
        relations: 8 tensors a relation (docs/architecture.md).
        sizes: number of nodes of each node type.
        tracer: runs structural islands.
    """

    def __init__(
        self, metagraph: Metagraph, relations: Sequence[Relation], sizes: Sequence[Size], tracer: Tracer
    ) -> None:
        self.metagraph = metagraph
        self.relations = [list(relation) for relation in relations]
        self.sizes = list(sizes)
        self.tracer = tracer

    # DGLGraph's constructor accepts nothing else. A real subclass would hand a null C++ handle to DGL's library, which
    # crashes; a plain object makes the library raise TypeError.
    __class__ = property(lambda self: HeteroGraphIndex)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CaptureError(
            f"the graph query '{name}' has no form in which it could be recorded; "
            "compute it once outside of forward and pass the result"
        )

    # ---- static

    @property
    def dtype(self) -> str:
        return "int32" if self.relations[0][SRC].dtype == torch.int32 else "int64"

    @property
    def ctx(self) -> Any:
        return to_dgl_context(self.relations[0][SRC].device)

    def number_of_ntypes(self) -> int:
        return self.metagraph.num_ntypes

    def number_of_etypes(self) -> int:
        return len(self.relations)

    def is_metagraph_unibipartite(self) -> bool:
        return self.metagraph.bipartition() is not None

    def is_pinned(self) -> bool:
        return False

    # ---- sizes, degrees and ends

    def num_nodes(self, ntype: int) -> Size:
        return self.sizes[ntype]

    def num_edges(self, etype: int) -> Size:
        return num_edges(self.relations[etype])

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    def nodes(self, ntype: int) -> Tensor:
        """All node ids of a type."""
        like = self.relations[0][SRC]
        return torch.arange(self.sizes[ntype], dtype=like.dtype, device=like.device)

    def all_in_degrees(self, etype: int) -> Tensor:
        indptr = self.relations[etype][CSC_INDPTR]
        return indptr[1:] - indptr[:-1]

    def all_out_degrees(self, etype: int) -> Tensor:
        indptr = self.relations[etype][CSR_INDPTR]
        return indptr[1:] - indptr[:-1]

    def in_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.all_in_degrees(etype).index_select(0, v)

    def out_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.all_out_degrees(etype).index_select(0, v)

    def has_nodes(self, ntype: int, vids: Tensor) -> Tensor:
        return (vids >= 0) & (vids < self.sizes[ntype])

    def edges(self, etype: int, order: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        relation = self.relations[etype]
        if order == "srcdst":
            by_dst = relation[DST].argsort(stable=True)
            eids = by_dst[relation[SRC][by_dst].argsort(stable=True)]
            return relation[SRC][eids], relation[DST][eids], eids.to(relation[SRC].dtype)
        src = relation[SRC]
        return src, relation[DST], torch.arange(src.shape[0], dtype=src.dtype, device=src.device)

    def find_edges(self, etype: int, eids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        relation = self.relations[etype]
        return relation[SRC].index_select(0, eids), relation[DST].index_select(0, eids), eids

    def adjacency_matrix_tensors(self, etype: int, transpose: bool, fmt: str) -> tuple[Any, ...]:
        relation = self.relations[etype] if transpose else reverse(self.relations[etype])
        rows, columns = num_dst(relation), num_src(relation)
        if fmt == "csr":
            return (rows, columns, *relation[:3])
        return rows, columns, relation[DST], relation[SRC]

    # ---- other structures

    def island(self, fn: Callable[..., list[Tensor]], *args: Any, name: str, reason: str, pure: bool) -> list[Tensor]:
        """Have ``fn`` run eagerly at each call; see :meth:`gqc.capture.tracer.Tracer.island`."""
        with torch._C.DisableTorchFunction():
            fakes: list[Tensor] = self.tracer.island(fn, *args, name=name, reason=reason, pure=pure)
        return fakes

    def with_relations(self, relations: Sequence[Relation]) -> TracedIndex:
        """The same node types and sizes with other edges."""
        return TracedIndex(self.metagraph, relations, self.sizes, self.tracer)

    def get_relation_graph(self, etype: int) -> TracedIndex:
        if len(self.relations) == 1 and self.metagraph.num_ntypes == len(set(self.metagraph.ends[0])):
            return self
        source, target = self.metagraph.ends[etype]
        if source == target:
            metagraph, sizes = Metagraph(1, ((0, 0),)), [self.sizes[source]]
        else:
            metagraph, sizes = Metagraph(2, ((0, 1),)), [self.sizes[source], self.sizes[target]]
        return TracedIndex(metagraph, [self.relations[etype]], sizes, self.tracer)

    def reverse(self) -> TracedIndex:
        metagraph = Metagraph(self.metagraph.num_ntypes, tuple((d, s) for s, d in self.metagraph.ends))
        return TracedIndex(metagraph, [reverse(relation) for relation in self.relations], self.sizes, self.tracer)

    def edge_subgraph(self, eids: Sequence[Tensor], preserve_nodes: bool) -> EdgeSubgraph:
        if not preserve_nodes:
            raise CaptureError("an edge subgraph with renumbered nodes is taken; pass relabel_nodes=False")
        relations = [
            build_relation(relation[SRC].index_select(0, e), relation[DST].index_select(0, e), relation)
            for relation, e in zip(self.relations, eids, strict=True)
        ]
        return EdgeSubgraph(self.with_relations(relations), list(eids))


@dataclass(frozen=True)
class EdgeSubgraph:
    """What ``HeteroGraphIndex.edge_subgraph`` returns."""

    graph: TracedIndex
    induced_edges: list[Tensor]


def build_relation(src: Tensor, dst: Tensor, like: Relation) -> Relation:
    """A relation with the node types of ``like`` and other edges."""
    return list(torch.ops.gqc.relation(src, dst, num_src(like), num_dst(like)))


def is_traced(graph: dgl.DGLGraph) -> bool:
    """Whether a graph belongs to the capture that is running."""
    return type(graph._graph) is TracedIndex
