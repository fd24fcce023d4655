"""The primitives of GNN training: GEMM, SPMM, SDDMM, edge softmax and typed matrix products.

Everything that the passes know about single ops is in the tables of this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.passes.nodes import IDENTITIES, aten, is_tensor

ops = torch.ops.gqc

GEMM, SPMM, SDDMM, EDGE_SOFTMAX, TYPED_MM = "gemm", "spmm", "sddmm", "edge_softmax", "typed_mm"
ATTENTION = "attention"
"""SDDMM, edge softmax and SPMM in one, made by :func:`gqc.passes.fuse_attention.fuse_attention`."""

KINDS = {
    aten.mm.default: GEMM,
    aten.addmm.default: GEMM,
    aten.linear.default: GEMM,
    aten.bmm.default: GEMM,
    aten.baddbmm.default: GEMM,
    ops.spmm.default: SPMM,
    ops.spmm_cmp.default: SPMM,
    ops.spmm_cmp_bwd.default: SPMM,
    ops.sddmm.default: SDDMM,
    ops.edge_softmax.default: EDGE_SOFTMAX,
    ops.edge_softmax_bwd.default: EDGE_SOFTMAX,
    ops.segment_mm.default: TYPED_MM,
    ops.segment_mm_bwd_b.default: TYPED_MM,
    ops.gather_mm.default: TYPED_MM,
    ops.gather_mm_bwd_b.default: TYPED_MM,
    ops.typed_spmm.default: TYPED_MM,
    ops.typed_spmm_bwd_b.default: TYPED_MM,
}

_FACTORS = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.linear.default: (0, 1)}


MOST_PACKED_BITS = 4
"""Values of at most so many bits are packed two a byte."""


@dataclass(frozen=True)
class Primitive:
    """The mark of a primitive, ``node.meta["gqc"]``.

    Attributes:
        kind: one of the values of :data:`KINDS`, or :data:`ATTENTION`.
        op: what it computes: ``"nn"``, ``"nt"``, ``"tn"``, ``"tt"`` for a GEMM by the transposition of its operands,
            ``"copy_lhs"``, ``"mul"``, ``"dot"``, ``"max"``, ``"gat"``, ... otherwise.
        half: ``"forward"`` or ``"backward"``.
        kept: why it stays in full precision; ``None``: it is quantized, or not yet decided.
        bits: width of its quantized operands, 2 to 8.
    """

    kind: str
    op: str
    half: str
    kept: str | None = None
    bits: int = 8


@dataclass(frozen=True)
class Factor:
    """An operand of a GEMM: a matrix, read as it is or transposed."""

    node: fx.Node
    transposed: bool


def mark(node: fx.Node) -> Primitive | None:
    """The mark of a node that :func:`find_primitives` found to be a primitive."""
    return node.meta.get("gqc")


def marked(graph: fx.Graph) -> list[tuple[fx.Node, Primitive]]:
    """All primitives in graph order."""
    return [(n, n.meta["gqc"]) for n in graph.nodes if "gqc" in n.meta]


def factors(node: fx.Node) -> tuple[Factor, Factor]:
    """The two matrices of a GEMM without the transposes and copies that lie between."""
    left, right = (_factor(node.args[i]) for i in _FACTORS[node.target])  # type: ignore[arg-type,index]
    if node.target is aten.linear.default:
        right = Factor(right.node, not right.transposed)
    return left, right


def _factor(node: fx.Node) -> Factor:
    transposed = False
    while node.op == "call_function" and (node.target in IDENTITIES or _is_transpose(node)):
        transposed ^= node.target not in IDENTITIES
        node = node.args[0]  # type: ignore[assignment]
    return Factor(node, transposed)


def _is_transpose(node: fx.Node) -> bool:
    if node.target is aten.permute.default:
        return [axis % 2 for axis in node.args[1]] == [1, 0]  # type: ignore[union-attr]
    if node.target is aten.transpose.int:
        return sorted(axis % 2 for axis in node.args[1:]) == [0, 1]  # type: ignore[operator]
    return node.target is aten.t.default


def form(node: fx.Node) -> str:
    """What a primitive computes, see :attr:`Primitive.op`."""
    if node.target in _FACTORS:
        return "".join("t" if f.transposed else "n" for f in factors(node))
    if node.target is ops.spmm_cmp.default:
        return f"{node.args[1]} {node.args[2]}"
    if KINDS[node.target] in (SPMM, SDDMM) and isinstance(node.args[1], str):
        return node.args[1]
    return node.target._schema.name.split("::")[1]  # type: ignore[union-attr]


def operands(node: fx.Node) -> list[fx.Node]:
    """The floating-point tensors that a primitive reads, as it reads them, without an added bias."""
    bias = {aten.addmm.default: 0, aten.baddbmm.default: 0, aten.linear.default: 2}.get(node.target)  # type: ignore[call-overload]
    read = [a for i, a in enumerate(node.args) if is_tensor(a) and i != bias]
    return [n for n in read if n.meta["val"].is_floating_point()]  # type: ignore[union-attr]


def is_scalar(value: Tensor) -> bool:
    """Whether a node or edge tensor holds one number a row or a head."""
    return value.dim() < 2 or (isinstance(value.shape[-1], int) and value.shape[-1] == 1)
