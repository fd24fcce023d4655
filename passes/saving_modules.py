"""Whose backward reads a tensor of the forward, and in how many bits it is to be saved for that."""

from __future__ import annotations

from collections.abc import Container, Iterator

from torch import fx

from gqc.passes.nodes import is_size, origin
from gqc.passes.saved_values import is_repeated
from gqc.save_bits import SaveBits


def reads(node: fx.Node, late: Container[fx.Node], again: Container[fx.Node] = ()) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The readers of a tensor that depend on a gradient, with what they read: the tensor or what is computed from it.

    Args:
        node: the tensor.
        late: :func:`gqc.passes.saved_values.tangent_dependent` of the graph.
        again: nodes that the backward computes, views aside.
    """
    for user in node.users:
        if user in late:
            yield user, node
        elif (user in again or is_repeated(user)) and not is_size(user):
            yield from reads(user, late, again)


def saving_modules(node: fx.Node, late: Container[fx.Node]) -> list[str]:
    """The modules whose backward reads a tensor; the one that computes it where that is not known."""
    origins = [origin(reader) for reader, _ in reads(node, late)]
    return list(dict.fromkeys(o.module for o in origins if o.id >= 0)) or [origin(node).module]


def asked_bits(node: fx.Node, saves: SaveBits, late: Container[fx.Node]) -> tuple[str | None, int]:
    """The entry of ``save_bits`` for a tensor, ``None`` if there is none, and its width: of several the widest."""
    return max((saves.width(module) for module in saving_modules(node, late)), key=lambda found: found[1])
