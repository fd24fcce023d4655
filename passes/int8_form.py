"""Which primitives have an int8 form, which read packed 4-bit values, and how these forms are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from gqc.passes.nodes import aten, example, is_tensor
from gqc.passes.primitive import factors, is_scalar, operands, ops
from gqc.runtime.kernels import DTYPES
from gqc.runtime.ops.typed_spmm import MOST_FEATURES

Quantized = Callable[[fx.Node], tuple[fx.Node, fx.Node]]
"""Gives the int8 values and the scale of an operand."""

Packed = Callable[[fx.Node], tuple[fx.Node, fx.Node, list[Any]]]
"""Gives the packed values of an operand of at most 4 bits, their scale and the features of a row."""

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Int8Form:
    """The int8 form of one op.

    Attributes:
        target: the quantized op; where the op has one result and this several, the first takes its place.
        refusal: why this call of the op has no int8 form, ``None`` if it has one.
        operands: the operands of a call that the form reads in int8.
        arguments: arguments of ``target`` for a call.
    """

    target: Callable[..., Any]
    refusal: Callable[[fx.Node], str | None]
    operands: Callable[[fx.Node], list[fx.Node]]
    arguments: Callable[[fx.Node, Quantized], Arguments]


@dataclass(frozen=True)
class Int4Form:
    """The form of an op that reads packed values; which operands it reads so, its :class:`Int8Form` says.

    Attributes:
        target: the op on packed values.
        arguments: arguments of ``target`` for a call.
    """

    target: Callable[..., Any]
    arguments: Callable[[fx.Node, Packed], Arguments]


def refusal(node: fx.Node) -> str | None:
    """Why a primitive has no int8 form, ``None`` if it has one."""
    for operand in operands(node):
        dtype = operand.meta["val"].dtype
        if dtype not in DTYPES:
            return f"{str(dtype).removeprefix('torch.')} operands have no int8 form"
    if node.target in _NO_FORM:
        return _NO_FORM[node.target]  # type: ignore[index]
    return FORMS[node.target].refusal(node)  # type: ignore[index]


def _dtype(node: fx.Node) -> torch.dtype:
    value = node.meta["val"]
    return (value[0] if isinstance(value, tuple | list) else value).dtype


# GEMM


def _refuse_gemm(node: fx.Node) -> str | None:
    if any(operand.meta["val"].dim() != 2 for operand in operands(node)):
        return "a product of more than two dimensions has no int8 form"
    if node.target is aten.addmm.default:
        bias = node.args[0]
        scaled = any(value != 1 for value in node.kwargs.values()) or len(node.args) > 3
        if scaled or bias.meta["val"].dim() != 1 or bias.meta["val"].shape != node.meta["val"].shape[1:]:  # type: ignore[union-attr]
            return "the added matrix is scaled or not a bias row"
    return None


def _gemm_operands(node: fx.Node) -> list[fx.Node]:
    return [factor.node for factor in factors(node)]


def _gemm_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    left, right = factors(node)
    return (*quantized(left.node), *quantized(right.node), *_gemm_options(node))


def _gemm_int4_arguments(node: fx.Node, packed: Packed) -> Arguments:
    (left, left_scale, (left_width,)), (right, right_scale, (right_width,)) = (packed(f.node) for f in factors(node))
    return (left, left_scale, left_width, right, right_scale, right_width, *_gemm_options(node))


def _gemm_options(node: fx.Node) -> Arguments:
    bias = {aten.addmm.default: 0, aten.linear.default: 2}.get(node.target)  # type: ignore[call-overload]
    added = node.args[bias] if bias is not None and len(node.args) > bias else None
    return (*(f.transposed for f in factors(node)), added, _dtype(node))


# SPMM


def _refuse_spmm(node: fx.Node) -> str | None:
    op, nodes = node.args[1:3]
    if op == "copy_rhs":
        return "each edge value is read once: nothing to gain"
    if op not in ("copy_lhs", "mul"):
        return f"SPMM {op} has no int8 form"
    return "one number a node: nothing to gain" if is_scalar(nodes.meta["val"]) else None  # type: ignore[union-attr]


def _spmm_operands(node: fx.Node) -> list[fx.Node]:
    return [node.args[2]]  # type: ignore[list-item]


def _spmm_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    # Edge weights stay float: one scale over all attention weights, with a sign or without, rounds those of a hub's
    # edges to nothing (docs/passes.md).
    relation, op, nodes, edges, *rows = node.args
    return (relation, op, *quantized(nodes), edges, None, _dtype(node), *rows)  # type: ignore[arg-type]


def _spmm_int4_arguments(node: fx.Node, packed: Packed) -> Arguments:
    relation, op, nodes, edges, *rows = node.args
    return (relation, op, *packed(nodes), edges, _dtype(node), *rows)  # type: ignore[arg-type]


def _refuse_spmm_cmp(node: fx.Node) -> str | None:
    op, nodes = node.args[1], node.args[3]
    if op != "copy_lhs":
        return f"max or min over {op} has no int8 form"
    return "one number a node: nothing to gain" if is_scalar(nodes.meta["val"]) else None  # type: ignore[union-attr]


def _spmm_cmp_operands(node: fx.Node) -> list[fx.Node]:
    return [node.args[3]]  # type: ignore[list-item]


def _spmm_cmp_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    relation, _, reduce, nodes, _ = node.args
    return (relation, reduce, *quantized(nodes), _dtype(node))  # type: ignore[arg-type]


# SDDMM


def _refuse_sddmm(node: fx.Node) -> str | None:
    op = node.args[1]
    if op in ("copy_lhs", "copy_rhs"):
        return "a gather computes nothing: nothing to gain"
    return None if _sddmm_operands(node) else "one number a node or edge and head: nothing to gain"


def _sddmm_operands(node: fx.Node) -> list[fx.Node]:
    """Wide node features; a divisor stays float, because int8 rounds small divisors to zero."""
    _, op, left, right, left_target, right_target = node.args
    sides = [(left, left_target)] + ([(right, right_target)] if op != "div" else [])
    return [n for n, t in sides if is_tensor(n) and t != "e" and not is_scalar(n.meta["val"])]  # type: ignore[union-attr,misc]


def _sddmm_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    relation, op, left, right, left_target, right_target = node.args
    in_int8 = _sddmm_operands(node)
    pairs = [quantized(n) if n in in_int8 else (n, None) for n in (left, right)]  # type: ignore[arg-type]
    if op == "div":
        pairs[1] = (right, None)  # type: ignore[assignment]
    return (relation, op, *pairs[0], *pairs[1], left_target, right_target, _dtype(node))


def _sddmm_int4_arguments(node: fx.Node, packed: Packed) -> Arguments:
    relation, op, left, right, left_target, right_target = node.args
    in_int4 = _sddmm_operands(node)
    triples = [packed(n) if n in in_int4 else (n, None, None) for n in (left, right)]  # type: ignore[arg-type]
    if op == "div":
        triples[1] = (right, None, None)  # type: ignore[assignment]
    return (relation, op, *triples[0], *triples[1], left_target, right_target, _dtype(node))


# Sums of products by type


def _refuse_typed_spmm(node: fx.Node) -> str | None:
    width = example(node.args[1].meta["val"].shape[1])  # type: ignore[union-attr]
    return None if width <= MOST_FEATURES else f"more than {MOST_FEATURES} features are not summed in int8"


def _typed_spmm_operands(node: fx.Node) -> list[fx.Node]:
    # Weights of edges stay float, as in SPMM.
    return [node.args[1], node.args[2]]  # type: ignore[list-item]


def _refuse_typed_spmm_bwd_b(node: fx.Node) -> str | None:
    return None if node.args[5] is None else "a sum over edges of products with weights has no int8 form"


def _typed_spmm_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    relation, rows, matrices, types, weights = node.args
    return (relation, *quantized(rows), *quantized(matrices), types, weights, _dtype(node))  # type: ignore[arg-type]


def _typed_spmm_bwd_b_arguments(node: fx.Node, quantized: Quantized) -> Arguments:
    relation, rows, gradients, types, num, _ = node.args
    return (relation, *quantized(rows), *quantized(gradients), types, num, _dtype(node))  # type: ignore[arg-type]


_GEMM = Int8Form(ops.qgemm.default, _refuse_gemm, _gemm_operands, _gemm_arguments)

FORMS = {
    aten.mm.default: _GEMM,
    aten.addmm.default: _GEMM,
    aten.linear.default: _GEMM,
    ops.spmm.default: Int8Form(ops.qspmm.default, _refuse_spmm, _spmm_operands, _spmm_arguments),
    ops.spmm_cmp.default: Int8Form(ops.qspmm_cmp.default, _refuse_spmm_cmp, _spmm_cmp_operands, _spmm_cmp_arguments),
    ops.sddmm.default: Int8Form(ops.qsddmm.default, _refuse_sddmm, _sddmm_operands, _sddmm_arguments),
    ops.typed_spmm.default: Int8Form(
        ops.qtyped_spmm.default, _refuse_typed_spmm, _typed_spmm_operands, _typed_spmm_arguments
    ),
    ops.typed_spmm_bwd_b.default: Int8Form(
        ops.qtyped_spmm_bwd_b.default, _refuse_typed_spmm_bwd_b, _typed_spmm_operands, _typed_spmm_bwd_b_arguments
    ),
}

_GEMM_INT4 = Int4Form(ops.qgemm_int4.default, _gemm_int4_arguments)

INT4_FORMS = {
    aten.mm.default: _GEMM_INT4,
    aten.addmm.default: _GEMM_INT4,
    aten.linear.default: _GEMM_INT4,
    ops.spmm.default: Int4Form(ops.qspmm_int4.default, _spmm_int4_arguments),
    ops.sddmm.default: Int4Form(ops.qsddmm_int4.default, _sddmm_int4_arguments),
}
"""A primitive of at most 4 bits without an entry here reads the values unpacked."""

_UNJOINED = "a product by type has an int8 form only between a gather and a sum over a graph's edges"
_NO_FORM = {
    aten.bmm.default: "a batched product has no int8 form",
    aten.baddbmm.default: "a batched product has no int8 form",
    ops.spmm_cmp_bwd.default: "it routes gradients by index and computes nothing",
    ops.edge_softmax.default: "softmax runs in full precision",
    ops.edge_softmax_bwd.default: "softmax runs in full precision",
    ops.segment_mm.default: _UNJOINED,
    ops.segment_mm_bwd_b.default: _UNJOINED,
    ops.gather_mm.default: _UNJOINED,
    ops.gather_mm_bwd_b.default: _UNJOINED,
}
