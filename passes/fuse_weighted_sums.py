"""Compute weighted sums over an axis as one op, which reads rows of a table where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.held_rows import table_and_index
from gqc.passes.nodes import aten, by_name, call, drop_unused, example, half, is_size, is_tensor, origin
from gqc.passes.pointwise_steps import Size, holder, is_contiguous, is_same, is_same_size, unexpanded
from gqc.passes.primitive import ops
from gqc.passes.report import REPLACED, Decision, Report
from gqc.policy import Policy

MUL, SUM, EMBEDDING_BACKWARD = aten.mul.Tensor, aten.sum.dim_IntList, aten.embedding_dense_backward.default

LEAST_WIDTH = 16
"""Shorter rows are no vector of the kernels."""


def fuse_weighted_sums(joint: JointGraph, policy: Policy) -> Report:
    """Replace ``(w[..., None] * x).sum(-2)`` by ``gqc.weighted_sum``, whose product is never in memory.

    An attention over a few neighbours of each node, expanded into ``x [*, K, D]``, is written so. The product is as
    large as ``x``, and PyTorch's sum over an axis that is not the last takes longer than to read it.

    Requires: nothing. It runs before the products and sums become part of programs.
    Does: on the CPU, for float32 rows that a vector fits in. Where ``x`` are rows of a parameter or an input, the op
        picks them itself, and so does the gradient of the weights; then nothing needs ``x`` any more, so it is neither
        made nor saved. A gradient of the table that only sums up ``w[..., None] * grad[..., None, :]`` by row is
        computed from both factors.
    Ensures: the same values up to the order of sums.
    """
    report = Report("fuse_weighted_sums")
    if joint.device.type != "cpu":
        return report
    for node in list(joint.graph.nodes):
        if node.target is SUM:
            found = _weighted_sum(node) or _gradient_of_weights(node)
        elif node.target is EMBEDDING_BACKWARD:
            found = _gradient_of_table(node)
        else:
            continue
        if found is not None:
            new, reason = found
            node.replace_all_uses_with(new)
            if "desc" in node.meta:
                new.meta["desc"] = node.meta["desc"]
            where = (origin(new).module, "weighted sum", half(new))
            report.decisions.append(Decision(new.name, *where, REPLACED, reason))
    drop_unused(joint.graph)
    return report


def _weighted_sum(node: fx.Node) -> tuple[fx.Node, str] | None:
    """The sum over the axis before the last of a product of rows and one weight a row."""
    given = by_name(node)
    product = _only_sum_of(node, axis=-2)
    if product is None or given["keepdim"]:
        return None
    for rows, column in _factors(product):
        if not (_is_column(column, _shape(product)) and is_same_size(_shape(rows), _shape(product))):
            continue
        with node.graph.inserting_before(node):
            picked = _picked(rows)
            if picked is None and not is_contiguous(rows):
                continue
            of, index = (rows, None) if picked is None else (picked.table, picked.numbers(rows))
            new = call(ops.weighted_sum.default, (_without(column, -1), of, index), node, f"{node.name}_weighted")
        where = "" if picked is None else f", whose rows {picked.node.name} picked"
        return new, f"sums up {of.name} weighted{where}, without the product {product.name}"
    return None


def _gradient_of_weights(node: fx.Node) -> tuple[fx.Node, str] | None:
    """The sum over the last axis of a product of rows of a table and one vector for several of them."""
    product = _only_sum_of(node, axis=-1)
    if product is None:
        return None
    for rows, repeated in _factors(product):
        gradient = unexpanded(repeated)
        picked = _picked(rows)
        if picked is None or not is_same_size(_shape(rows), _shape(product)) or not _is_one(gradient, rows):
            continue
        with node.graph.inserting_before(node):
            arguments = (picked.table, picked.numbers(rows), _without(gradient, -2))
            new = call(ops.weighted_sum_bwd_weights.default, arguments, node, f"{node.name}_dots")
            if by_name(node)["keepdim"]:
                new = call(aten.unsqueeze.default, (new, -1), node, f"{node.name}_column")
        return new, f"reads the rows of {picked.table.name} in the place of {picked.node.name}"
    return None


def _gradient_of_table(node: fx.Node) -> tuple[fx.Node, str] | None:
    """The sum by row of gradients, or of products of weights and one gradient for several of them."""
    gradient, index, num, padding, scaled = node.args
    value: Tensor = gradient.meta["val"]  # type: ignore[union-attr]
    if padding >= 0 or scaled or value.dtype is not torch.float32 or example(value.shape[-1]) < LEAST_WIDTH:  # type: ignore
        return None
    product = holder(gradient)  # type: ignore[arg-type]
    with node.graph.inserting_before(node):
        if product.target is MUL and _is_read_once(product, gradient):  # type: ignore[arg-type]
            for column, repeated in _factors(product):
                vector, shape = unexpanded(repeated), _shape(product)
                numbers = _reshaped(index, shape[:-1])  # type: ignore[arg-type]
                if numbers is not None and _is_column(column, shape) and _is_one(vector, product):
                    arguments = (_without(vector, -2), numbers, num, _without(column, -1))
                    new = call(ops.add_rows.default, arguments, node, f"{node.name}_weighted")
                    return new, f"adds up without the product {product.name}"
        new = call(ops.add_rows.default, (gradient, index, num), node, f"{node.name}_rows")
    return new, "adds up vectors of each row"


@dataclass(frozen=True)
class _Picked:
    """Rows of a table.

    Attributes:
        node: what picks them.
        table, index: their table [N, D] and their numbers.
    """

    node: fx.Node
    table: fx.Node
    index: fx.Node

    def numbers(self, rows: fx.Node) -> fx.Node:
        """The numbers in the shape of the rows, at the insertion point."""
        numbers = _reshaped(self.index, _shape(rows)[:-1])
        assert numbers is not None
        return numbers


def _picked(rows: fx.Node) -> _Picked | None:
    """What picks rows ``[*, D]`` from a parameter or an input that nothing updates."""
    node = holder(rows)
    found = table_and_index(node)
    if found is None:
        return None
    table, index = found
    whole = len(_shape(table)) == 2 and is_same(_shape(table)[1], _shape(rows)[-1])
    fits = is_same_size(_shape(index), _shape(rows)[:-1]) or _symbolic(_shape(rows)[:-1]) <= 1
    return _Picked(node, table, index) if whole and fits else None


def _only_sum_of(node: fx.Node, axis: int) -> fx.Node | None:
    """The product of float32 tensors that a sum over one axis alone reads."""
    given = by_name(node)
    product, axes = given["self"], given["dim"]
    if product.target is not MUL or given["dtype"] is not None or not _is_read_once(product, product):
        return None
    shape = _shape(product)
    if not axes or len(shape) < 2 or [a % len(shape) for a in axes] != [axis % len(shape)]:
        return None
    floats = all(is_tensor(x) and x.meta["val"].dtype is torch.float32 for x in product.args)  # type: ignore[union-attr]
    return product if floats and example(shape[-1]) >= LEAST_WIDTH else None


def _is_read_once(node: fx.Node, view: fx.Node) -> bool:
    """Whether one node alone reads a tensor, through ``view`` of it."""
    while view is not node:
        if len([user for user in view.users if not is_size(user)]) != 1:
            return False
        view = view.args[0]  # type: ignore[assignment]
    return len([user for user in node.users if not is_size(user)]) == 1


def _factors(product: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    a, b = product.args[:2]
    if is_tensor(a) and is_tensor(b):
        yield a, b  # type: ignore[misc]
        yield b, a  # type: ignore[misc]


def _is_column(node: fx.Node, shape: Size) -> bool:
    """Whether a tensor has one number for each row of ``shape``."""
    own = _shape(node)
    is_float32 = node.meta["val"].dtype is torch.float32
    return is_float32 and is_same_size(own[:-1], shape[:-1]) and len(own) == len(shape) and is_same(own[-1], 1)


def _is_one(node: fx.Node, rows: fx.Node) -> bool:
    """Whether a tensor has one row for all rows along the axis before the last."""
    own, shape = _shape(node), _shape(rows)
    if len(own) != len(shape) or len(shape) < 2 or node.meta["val"].dtype is not torch.float32:
        return False
    return is_same(own[-2], 1) and is_same_size(own[:-2], shape[:-2]) and is_same(own[-1], shape[-1])


def _without(node: fx.Node, axis: int) -> fx.Node:
    """A tensor without an axis of length 1, at the insertion point."""
    made: Any = node.args[0] if node.target is aten.unsqueeze.default else None
    if made is not None and node.args[1] % len(_shape(node)) == axis % len(_shape(node)):  # type: ignore[operator]
        return made
    return call(aten.squeeze.dim, (node, axis), node, f"{node.name}_squeezed")


def _reshaped(index: fx.Node, shape: Size) -> fx.Node | None:
    """Integers in another shape at the insertion point, ``None`` if more than one of its axes is symbolic."""
    if is_same_size(_shape(index), shape):
        return index
    if _symbolic(shape) > 1:
        return None
    sizes = [n if isinstance(n, int) else -1 for n in shape]
    return call(aten.reshape.default, (index, sizes), index, f"{index.name}_view")


def _symbolic(shape: Size) -> int:
    return sum(not isinstance(n, int) for n in shape)


def _shape(node: fx.Node) -> Size:
    value: Tensor = node.meta["val"]
    return tuple(value.shape)
