"""SPMM: the sum of messages over the in-edges of each destination."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gqc.runtime.reference.binary import binary
from gqc.runtime.relation import DST, edge_rows, num_dst


def messages(g: Sequence[Tensor], op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    """``[E, *F]``: ``op(u[src], e)`` in edge-id order."""
    return binary(op, None if u is None else edge_rows(g, u, "u"), e)


def spmm(g: Sequence[Tensor], op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    """``out[v] = sum of op(u[src], e) over the in-edges of v``, ``[Nd, *F]``; 0 where v has none."""
    m = messages(g, op, u, e)
    return m.new_zeros((num_dst(g), *m.shape[1:])).index_add(0, g[DST], m)
