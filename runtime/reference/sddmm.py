"""SDDMM: an operation on the two ends of each edge, or on an end and the edge itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gqc.runtime.reference.binary import binary
from gqc.runtime.relation import edge_rows


def sddmm(
    g: Sequence[Tensor], op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str
) -> Tensor:
    """``out[i] = op(lhs[row of edge i], rhs[row of edge i])``, ``[E, *F]`` in edge-id order."""
    lhs = None if lhs is None else edge_rows(g, lhs, lhs_target)
    rhs = None if rhs is None else edge_rows(g, rhs, rhs_target)
    return binary(op, lhs, rhs)
