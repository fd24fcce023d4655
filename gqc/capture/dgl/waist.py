"""DGL's message-passing kernels as ``torch.ops.gqc`` calls.

Everything that DGL computes over edges (``update_all``, ``apply_edges``, ``edge_softmax``, ``dgl.ops``) passes through
the functions replaced here. Each checks what DGL's C++ kernels check and fails with the same error class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from dgl._sparse_ops import infer_broadcast_shape
from dgl.base import ALL, DGLError, is_all
from torch import Tensor

from gqc.capture.dgl.index import Relation, TracedIndex
from gqc.runtime.relation import CSC_INDPTR, num_rows, reverse

Target = Literal["u", "v", "e"]
ZERO_WHERE_EMPTY = "_gqc_zero_where_empty"
"""Attribute of results of max and min: nodes without in-edges are 0 and need no replacement of infinities."""

_NAMES = {"u": "U", "v": "V", "e": "E"}


def gspmm(index: TracedIndex, op: str, reduce_op: str, lhs: Tensor | None, rhs: Tensor | None) -> Tensor:
    """Replaces ``dgl.backend.gspmm``: ``[Nd, *F]``, reduce over in-edges of op(source row, edge row)."""
    return _reduce(index.relations[0], op, reduce_op, lhs, rhs)


def gsddmm(
    index: TracedIndex,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    lhs_target: Target = "u",
    rhs_target: Target = "v",
) -> Tensor:
    """Replaces ``dgl.backend.gsddmm``: ``[E, *F]``, op(lhs row, rhs row) of each edge."""
    return _edgewise(index.relations[0], op, lhs, rhs, lhs_target, rhs_target)


def gspmm_hetero(
    index: TracedIndex, op: str, reduce_op: str, num_lhs: int, *operands: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Replaces ``dgl.backend.gspmm_hetero``: one result a node type, reduced over the in-edges of all its relations."""
    lhs, rhs = operands[:num_lhs], operands[num_lhs:]
    results: list[list[tuple[Relation, Tensor]]] = [[] for _ in range(index.number_of_ntypes())]
    for etype, relation in enumerate(index.relations):
        source, target = index.metagraph.find_edge(etype)
        u = None if op == "copy_rhs" else lhs[source]
        e = None if op == "copy_lhs" else rhs[etype]
        if u is not None or e is not None:
            results[target].append((relation, _reduce(relation, op, reduce_op, u, e)))
    return tuple(_across_relations(parts, reduce_op) if parts else None for parts in results)


def gsddmm_hetero(
    index: TracedIndex, op: str, num_lhs: int, lhs_target: Target, rhs_target: Target, *operands: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Replaces ``dgl.backend.gsddmm_hetero``: one result a relation."""
    lhs, rhs = operands[:num_lhs], operands[num_lhs:]
    results: list[Tensor | None] = []
    for etype, relation in enumerate(index.relations):
        source, target = index.metagraph.find_edge(etype)
        position = {"u": source, "v": target, "e": etype}
        left = None if op == "copy_rhs" else lhs[position[lhs_target]]
        right = None if op == "copy_lhs" else rhs[position[rhs_target]]
        missing = left is None and right is None
        results.append(None if missing else _edgewise(relation, op, left, right, lhs_target, rhs_target))
    return tuple(results)


def edge_softmax(index: TracedIndex, logits: Tensor, eids: Any = ALL, norm_by: str = "dst") -> Tensor:
    """Replaces ``dgl.backend.edge_softmax``: ``[E, *F]``, softmax over the edges that share an end node."""
    if not is_all(eids):
        index = index.edge_subgraph([eids], True).graph
    relation = index.relations[0] if norm_by == "dst" else reverse(index.relations[0])
    _check_operand(relation, logits, "e")
    return torch.ops.gqc.edge_softmax(relation, logits)


def edge_softmax_hetero(
    index: TracedIndex, eids: Any = ALL, norm_by: str = "dst", *logits: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Replaces ``dgl.backend.edge_softmax_hetero``: over all edges into a node, whatever their relation.

    The maximum over all relations is taken out as a constant (a softmax does not depend on it), so the gradient is
    that of exp and sum.
    """
    position = 1 if norm_by == "dst" else 0
    relations = index.relations if norm_by == "dst" else [reverse(r) for r in index.relations]
    results: list[Tensor | None] = list(logits)
    for ntype in range(index.number_of_ntypes()):
        etypes = [i for i, x in enumerate(logits) if x is not None and index.metagraph.find_edge(i)[position] == ntype]
        if not etypes:
            continue
        maxima = [
            (relations[i], _reduce(relations[i], "copy_rhs", "max", None, _given(logits[i]).detach())) for i in etypes
        ]
        top = _finite(_across_relations(maxima, "max"))
        weights = {i: torch.exp(_edgewise(relations[i], "sub", logits[i], top, "e", "v")) for i in etypes}
        total = _across_relations(
            [(relations[i], _reduce(relations[i], "copy_rhs", "sum", None, weights[i])) for i in etypes], "sum"
        )
        for i in etypes:
            results[i] = _edgewise(relations[i], "div", weights[i], total, "e", "v")
    return tuple(results)


def segment_mm(a: Tensor, b: Tensor, seglen: Tensor) -> Tensor:
    """Replaces ``dgl.backend.segment_mm``: runs of rows of ``a`` [N, K] times ``b`` [R, K, M]."""
    return torch.ops.gqc.segment_mm(*_as_matmul_casts(a, b), seglen)


def gather_mm(a: Tensor, b: Tensor, idx_a: Tensor | None = None, idx_b: Tensor | None = None) -> Tensor:
    """Replaces ``dgl.backend.gather_mm``: ``a[idx_a[i]] @ b[idx_b[i]]``."""
    rows = a if idx_a is None else a.index_select(0, idx_a)
    if idx_b is None:
        return torch.bmm(rows.unsqueeze(1), b).squeeze(1)
    return torch.ops.gqc.gather_mm(*_as_matmul_casts(rows, b), idx_b)


def _as_matmul_casts(*operands: Tensor) -> list[Tensor]:
    """Float operands in the dtype that autocast, where it is on, gives to a matrix product."""
    device = operands[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(operands)
    return [x.to(torch.get_autocast_dtype(device)) for x in operands]


def copy_to_edges(relation: Relation, x: Tensor, target: Target) -> Tensor:
    """``[E, *F]``: the row of the source (``"u"``) or destination (``"v"``) of each edge."""
    if not x.is_floating_point():
        return x.index_select(0, relation[6 if target == "u" else 7])
    if target == "u":
        return torch.ops.gqc.sddmm(relation, "copy_lhs", x, None, "u", "v")
    return torch.ops.gqc.sddmm(relation, "copy_rhs", None, x, "u", "v")


def _reduce(relation: Relation, op: str, reduce_op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    _check_operands(relation, op, u, "u", e, "e")
    if reduce_op == "sum":
        return torch.ops.gqc.spmm(relation, op, u, e)
    out, _ = torch.ops.gqc.spmm_cmp(relation, op, reduce_op, u, e)
    setattr(out, ZERO_WHERE_EMPTY, True)
    return out


def _edgewise(
    relation: Relation, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: Target, rhs_target: Target
) -> Tensor:
    lhs = None if op == "copy_rhs" else lhs
    rhs = None if op == "copy_lhs" else rhs
    _check_operands(relation, op, lhs, lhs_target, rhs, rhs_target)
    if op == "dot" and lhs is not None and lhs.dim() == 1:
        op = "mul"  # one feature a row: DGL drops the axis that dot would keep
    return torch.ops.gqc.sddmm(relation, op, lhs, rhs, lhs_target, rhs_target)


def _across_relations(parts: Sequence[tuple[Relation, Tensor]], reduce_op: str) -> Tensor:
    """Merge the results of several relations into one node type. Max and min leave infinity where there is no edge."""
    if reduce_op == "sum":
        return sum(result for _, result in parts)  # type: ignore[return-value]
    empty = float("-inf") if reduce_op == "max" else float("inf")
    better: Callable[[Tensor, Tensor], Tensor] = torch.ge if reduce_op == "max" else torch.le
    merged: Tensor | None = None
    for relation, result in parts:
        indptr = relation[CSC_INDPTR]
        has_edges = (indptr[1:] != indptr[:-1]).reshape([-1] + [1] * (result.dim() - 1))
        result = torch.where(has_edges, result, empty)
        merged = result if merged is None else torch.where(better(merged, result), merged, result)
    return _given(merged)


def _finite(x: Tensor) -> Tensor:
    return torch.where(torch.isinf(x), 0.0, x)


def _given(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


def _check_operands(
    relation: Relation, op: str, lhs: Tensor | None, lhs_target: Target, rhs: Tensor | None, rhs_target: Target
) -> None:
    if lhs is not None:
        _check_operand(relation, lhs, lhs_target)
    if rhs is not None:
        _check_operand(relation, rhs, rhs_target)
    if lhs is not None and rhs is not None:
        if lhs.dtype != rhs.dtype:
            raise DGLError(f"The operands must have one data type, but got {lhs.dtype} and {rhs.dtype}")
        infer_broadcast_shape(op if lhs.dim() > 1 else "mul", lhs.shape[1:], rhs.shape[1:])


def _check_operand(relation: Relation, x: Tensor, target: Target) -> None:
    expected = num_rows(relation, target)
    if x.shape[0] != expected:
        raise DGLError(
            f"Expect {_NAMES[target]}_data to have size {expected} on the first dimension, but got {x.shape[0]}"
        )
    if not x.is_floating_point():
        raise DGLError(f"Feature data must be float type, but got {x.dtype}")
