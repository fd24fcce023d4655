"""SPMM: the sum of messages over the in-edges of each destination."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gqc.runtime.reference.binary import binary
from gqc.runtime.relation import DST, edge_rows, num_dst


def messages(g: Sequence[Tensor], op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    """``[E, *F]``: ``op(u[src], e)`` in edge-id order."""
    return binary(op, None if u is None else edge_rows(g, u, "u"), e)


def spmm(
    g: Sequence[Tensor],
    op: str,
    u: Tensor | None,
    e: Tensor | None,
    rows: Tensor | None = None,
    divide: bool = False,
) -> Tensor:
    """``out[v] = sum of op(u[src], e) over the in-edges of v``, ``[Nd, *F]``; 0 where v has none.

    With ``rows``, float32 ``[Nd]``, it is then multiplied by ``rows[v]`` or, with ``divide``, divided by it.
    """
    m = messages(g, op, u, e)
    total = m.new_zeros((num_dst(g), *m.shape[1:])).index_add(0, g[DST], m)
    return total if rows is None else by_rows(total, rows, divide)


def by_rows(x: Tensor, rows: Tensor, divide: bool) -> Tensor:
    """Row v of ``x`` times ``rows[v]``, or divided by it, rounded to the dtype of ``x``."""
    factor = rows.reshape(-1, *[1] * (x.dim() - 1))
    return (x / factor if divide else x * factor).to(x.dtype)
