"""How large the integers in a graph's index inputs may be, read off the ops that index with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from gqc.passes.nodes import IDENTITIES, RESHAPES, aten, example, is_tensor
from gqc.passes.primitive import ops

_SAME_VALUES = (
    RESHAPES
    | IDENTITIES
    | {
        aten.select.int,
        aten.slice.Tensor,
        aten.expand.default,
        aten.cat.default,
        aten.index_select.default,
        aten.index.Tensor,
        aten.unbind.int,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten._to_copy.default,
    }
)
"""Ops that only move the integers of an operand."""


def index_bound(node: fx.Node) -> int | None:
    """One more than the largest integer that a placeholder may hold; ``None`` if no op says."""
    bounds: list[int] = []
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        index = stack.pop()
        if index in seen:
            continue
        seen.add(index)
        for user in index.users:
            bounds += _bounds(user, index)
            moved = user.target in _SAME_VALUES and index in _moved(user)
            if moved or getattr(user.target, "__name__", "") == "getitem":
                stack.append(user)
    return min(bounds) if bounds else None


def run_lengths(node: fx.Node) -> tuple[int, int] | None:
    """Rows and number of runs if a placeholder holds the run lengths of a typed matrix product, else ``None``."""
    for user in node.users:
        if user.target in (ops.segment_mm.default, ops.segment_mm_bwd_b.default) and user.args[2] is node:
            return _size(user.args[0], 0), _size(node, 0)
    return None


def _moved(user: fx.Node) -> list[Any]:
    first = user.args[0]
    return list(first) if isinstance(first, list | tuple) else [first]


def _bounds(user: fx.Node, index: fx.Node) -> Iterator[int]:
    if user.target in (aten.index.Tensor, aten.index_put.default, aten._unsafe_index.Tensor):
        indices = user.args[1]
        yield from (_size(user.args[0], axis) for axis, i in enumerate(indices) if i is index)  # type: ignore[union-attr,arg-type]
    elif user.target is ops.relation.default:
        yield from (_number(user.args[i + 2]) for i in (0, 1) if user.args[i] is index)
    elif user.target in _INDEX:
        position, bound = _INDEX[user.target]  # type: ignore[index]
        if len(user.args) > position and user.args[position] is index:
            yield bound(user)


def _size(node: Any, axis: int) -> int:
    return example(node.meta["val"].shape[axis])


def _number(value: Any) -> int:
    value = value.meta["val"] if isinstance(value, fx.Node) else value
    return example(value) if isinstance(value, torch.SymInt) else int(value)


def _along(user: fx.Node) -> int:
    """The size of the indexed axis of ``op(self, dim, index, ...)``."""
    return _size(user.args[0], user.args[1]) if is_tensor(user.args[0]) else 1  # type: ignore[arg-type]


_INDEX: dict[Any, tuple[int, Callable[[fx.Node], int]]] = {
    aten.index_select.default: (2, _along),
    aten.index_add.default: (2, _along),
    aten.index_copy.default: (2, _along),
    aten.index_fill.int_Scalar: (2, _along),
    aten.gather.default: (2, _along),
    aten.scatter.src: (2, _along),
    aten.scatter.value: (2, _along),
    aten.scatter_add.default: (2, _along),
    aten.scatter_reduce.two: (2, _along),
    aten.embedding.default: (1, lambda n: _size(n.args[0], 0)),
    aten.embedding_dense_backward.default: (1, lambda n: _number(n.args[2])),
    aten.nll_loss_forward.default: (1, lambda n: _size(n.args[0], 1)),
    ops.gather_mm.default: (2, lambda n: _size(n.args[1], 0)),
    ops.gather_mm_bwd_b.default: (2, lambda n: _number(n.args[3])),
    ops.typed_spmm.default: (3, lambda n: _size(n.args[2], 0)),
    ops.typed_spmm_bwd_b.default: (3, lambda n: _number(n.args[4])),
    ops.qtyped_spmm.default: (5, lambda n: _size(n.args[3], 0)),
    ops.qtyped_spmm_bwd_b.default: (5, lambda n: _number(n.args[6])),
}
"""Where an op reads an index, and the number of things that it indexes."""
