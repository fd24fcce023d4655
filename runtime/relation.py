"""A relation: one edge type of a graph as eight index tensors (docs/architecture.md, section Relations)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import SymInt, Tensor

CSC_INDPTR, CSC_INDICES, CSC_EIDS, CSR_INDPTR, CSR_INDICES, CSR_EIDS, SRC, DST = range(8)


def num_src(g: Sequence[Tensor]) -> int | SymInt:
    """Number of source nodes."""
    return g[CSR_INDPTR].shape[0] - 1


def num_dst(g: Sequence[Tensor]) -> int | SymInt:
    """Number of destination nodes."""
    return g[CSC_INDPTR].shape[0] - 1


def num_edges(g: Sequence[Tensor]) -> int | SymInt:
    """Number of edges."""
    return g[SRC].shape[0]


def reverse(g: Sequence[Tensor]) -> list[Tensor]:
    """The relation with every edge turned round; edge ids stay."""
    return [g[3], g[4], g[5], g[0], g[1], g[2], g[7], g[6]]


def num_rows(g: Sequence[Tensor], target: str) -> int | SymInt:
    """Rows of a feature that stands on ``"u"`` (sources), ``"v"`` (destinations) or ``"e"`` (edges)."""
    return {"u": num_src, "v": num_dst, "e": num_edges}[target](g)


def edge_rows(g: Sequence[Tensor], x: Tensor, target: str) -> Tensor:
    """``[E, *F]``: the row of ``x`` that each edge reads, in edge-id order."""
    if target == "e":
        return x
    return x.index_select(0, g[SRC] if target == "u" else g[DST])


def from_edges(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    """Build a relation from the ends of its edges.

    Args:
        src, dst: ``[E]`` int32 or int64 node ids, edge i goes from ``src[i]`` to ``dst[i]``.
        num_src, num_dst: number of nodes on either side.
    """
    return [*_compress(dst, src, num_dst), *_compress(src, dst, num_src), src.contiguous(), dst.contiguous()]


def _compress(rows: Tensor, columns: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    eids = _order(rows)
    indptr = torch.zeros(num_rows + 1, dtype=rows.dtype, device=rows.device)
    indptr[1:] = torch.bincount(rows, minlength=num_rows).cumsum(0)
    return indptr, columns[eids].contiguous(), eids.to(rows.dtype)


def _order(rows: Tensor) -> Tensor:
    """The edge ids in the order of their rows; on the CPU, edges that are in order already are not sorted."""
    if rows.device.type == "cpu" and bool((rows[1:] >= rows[:-1]).all()):
        return torch.arange(rows.shape[0])
    return torch.argsort(rows, stable=True)
