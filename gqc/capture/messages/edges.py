"""Which gathers, softmaxes and scatters of a recorded graph belong to the same edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.fx as fx

from gqc.capture.messages.calls import Gather, Scatter, is_on_edges, same, value
from gqc.capture.messages.softmax import Softmax
from gqc.capture.sizes import Sizes


@dataclass
class Edges:
    """The edges between two sets of nodes, and what runs along them.

    Attributes:
        src, dst: their ends, ``[E]``.
        num_src, num_dst: rows of what is gathered at the sources and of what is summed up at the destinations.
        gathers: by result, with the end at which it reads: ``"u"`` or ``"v"``.
        softmaxes: by result.
        sums: the scatters at the destinations, in graph order.
    """

    src: fx.Node
    dst: fx.Node
    num_src: Any
    num_dst: Any
    gathers: dict[fx.Node, tuple[Gather, str]] = field(default_factory=dict)
    softmaxes: dict[fx.Node, Softmax] = field(default_factory=dict)
    sums: list[Scatter] = field(default_factory=list)


class NoEdges(Exception):
    """Why a scatter stays one."""


class EdgeFinder:
    """Sorts the scatters of a graph by their edges."""

    def __init__(
        self,
        gathers: Mapping[fx.Node, Gather],
        softmaxes: Mapping[fx.Node, Softmax],
        structural: Container[fx.Node],
        canonical: Callable[[fx.Node], fx.Node],
        sizes: Sizes,
    ) -> None:
        self._gathers, self._softmaxes = gathers, softmaxes
        self._structural, self._canonical, self._sizes = structural, canonical, sizes
        self.found: dict[Hashable, Edges] = {}

    def add(self, scatter: Scatter) -> None:
        """Find the edges of a scatter: its index holds their destinations, and rows are gathered at their sources.

        Raises:
            NoEdges: there are none.
        """
        if scatter.index not in self._structural:
            raise NoEdges("its edges are computed from floats, and would have to be sorted at each call")
        gathers, softmaxes = self._behind(scatter)
        dst = self._canonical(scatter.index)
        num_dst = value(scatter.node).shape[0]  # type: ignore[union-attr]
        if not gathers:
            self._beside_others(scatter, dst, num_dst)
            return
        ends = Counter(self._canonical(g.index) for g in gathers if g.index in self._structural)
        src = next((end for end, _ in ends.most_common() if end is not dst), dst)
        if src not in ends:
            raise NoEdges("what it sums up is gathered by an index that is computed from floats")
        rows = [value(g.rows).shape[0] for g in gathers if self._canonical(g.index) is src]  # type: ignore[union-attr]
        num_src = num_dst if src is dst else rows[0]
        key = (src, dst, *map(self._size, (num_src, num_dst)))
        edges = self.found.setdefault(key, Edges(src, dst, num_src, num_dst))
        edges.sums.append(scatter)
        for gather in gathers:
            end = self._canonical(gather.index)
            count = value(gather.rows).shape[0]  # type: ignore[union-attr]
            if end is dst and same(count, num_dst):
                edges.gathers.setdefault(gather.node, (gather, "v"))
            elif end is src and same(count, num_src):
                edges.gathers.setdefault(gather.node, (gather, "u"))
        for softmax in softmaxes:
            if self._canonical(softmax.index) is dst and same(value(softmax.inner[0].node).shape[0], num_dst):  # type: ignore[union-attr]
                edges.softmaxes.setdefault(softmax.node, softmax)

    def _beside_others(self, scatter: Scatter, dst: fx.Node, num_dst: Any) -> None:
        """Sum up what is known of edges (their weights) along edges that were found with another scatter."""
        for edges in self.found.values():
            if edges.dst is dst and same(edges.num_dst, num_dst):
                edges.sums.append(scatter)
                return
        raise NoEdges("no rows are gathered along the same edges")

    def _behind(self, scatter: Scatter) -> tuple[list[Gather], list[Softmax]]:
        """The gathers and softmaxes from which messages are computed edge by edge, nearest first."""
        count = value(scatter.index).shape[0]  # type: ignore[union-attr]
        gathers, softmaxes = {}, {}
        seen: set[fx.Node] = set()
        todo = [scatter.messages]
        while todo:
            node = todo.pop(0)
            if node in seen or not is_on_edges(node, count, self._structural):
                continue
            seen.add(node)
            if node in self._gathers:
                gathers[node] = self._gathers[node]
            elif node in self._softmaxes:
                softmaxes[node] = self._softmaxes[node]
                todo.append(softmaxes[node].logits)
            else:
                todo.extend(node.all_input_nodes)
        return list(gathers.values()), list(softmaxes.values())

    def _size(self, size: Any) -> Hashable:
        return size if isinstance(size, int) else self._sizes.env.simplify(size.node.expr)
