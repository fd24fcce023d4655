"""What :func:`gqc.passes.fuse_attention.fuse_attention` asks of the ops on edges that it may replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import fx

from gqc.passes.nodes import aten, is_size
from gqc.passes.pointwise_steps import FLAT_VIEWS, is_same_size

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class NotFused(Exception):
    """Why a chain stays as it is."""


def need(holds: object, otherwise: str) -> None:
    """Raise :class:`NotFused` unless something holds."""
    if not holds:
        raise NotFused(otherwise)


def shape_of(x: fx.Node) -> str:
    return f"{x.name} has the shape {list(x.meta['val'].shape)}"


def readers(node: fx.Node) -> list[fx.Node]:
    """Who reads the values of a node."""
    return [n for n in node.users if not is_size(n)]


def only(nodes: Iterable[fx.Node]) -> fx.Node | None:
    """The only one of some nodes, ``None`` of none."""
    found = list(nodes)
    need(len(found) < 2, f"{' and '.join(n.name for n in found)} compute the same")
    return found[0] if found else None


def back_to_values(node: fx.Node) -> Iterator[fx.Node]:
    """A node and what it reshapes, up to the node that holds the values first."""
    yield node
    while keeps_order(node):
        node = node.args[0]  # type: ignore[assignment]
        yield node


def on_to_reader(node: fx.Node) -> Iterator[fx.Node]:
    """A node and those that reshape it, while nothing else reads it."""
    yield node
    while len(found := readers(node)) == 1 and keeps_order(found[0]):
        node = found[0]
        yield node


def keeps_order(node: fx.Node) -> bool:
    """Whether a node holds the values of its operand in the same row-major order."""
    return node.op == "call_function" and (node.target in FLAT_VIEWS or _expands_nothing(node))


def _expands_nothing(node: fx.Node) -> bool:
    if node.target is not aten.expand.default:
        return False
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    return is_same_size(before, after)
