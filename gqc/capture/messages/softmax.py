"""A softmax over the in-edges of each destination, composed of exponentials and scatters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.fx as fx

from gqc.capture.example import Example, storage_key
from gqc.capture.messages.calls import MAX, SUM, Gather, Scatter, is_unchanged, name_of, operands, same_shape, value


@dataclass(frozen=True)
class Softmax:
    """A softmax as PyG's ``softmax`` computes it.

    Attributes:
        node: its result, the exponentials divided by their sums.
        difference: the logits less the maxima.
        index: the destinations, ``[E]``.
        inner: the scatters of the sums and of the maxima.
    """

    node: fx.Node
    difference: fx.Node
    index: fx.Node
    inner: tuple[Scatter, Scatter]

    @property
    def logits(self) -> fx.Node:
        """What it is taken of."""
        return operands(self.difference)[0]  # type: ignore[index]


def read_softmax(
    node: fx.Node,
    gathers: Mapping[fx.Node, Gather],
    scatters: Mapping[fx.Node, Scatter],
    canonical: Callable[[fx.Node], fx.Node],
    example: Example,
) -> Softmax | None:
    """The softmax whose last step is a node.

    ``e / (s[index] + eps)`` with ``e = exp(x - m[index])``, ``s`` the sums and ``m`` the maxima of rows by an index.
    One of the exponentials of a sum is 1, so the sum is at least 1 and an ``eps`` below the rounding of 1 (PyG's 1e-16)
    changes nothing. The gradient is the same with ``m`` detached or not.
    """
    quotient = operands(node) if name_of(node) == "div" else None
    if quotient is None or quotient[1] not in gathers:
        return None
    exponential, below = quotient[0], gathers[quotient[1]]
    total = _without_epsilon(below.rows)
    if value(exponential) is None or name_of(exponential) != "exp" or len(exponential.args) != 1:
        return None
    added = scatters.get(total)
    if added is None or added.reduce != SUM or added.messages is not exponential:
        return None
    difference = operands(exponential.args[0]) if name_of(exponential.args[0]) == "sub" else None
    if difference is None or difference[1] not in gathers:
        return None
    logits, largest = difference[0], gathers[difference[1]]
    maximum = scatters.get(_attached(largest.rows))
    if maximum is None or maximum.reduce != MAX or _attached(maximum.messages) is not _attached(logits):
        return None
    indices = {canonical(x.index) for x in (below, added, largest, maximum)}
    before, after = value(logits), value(node)
    if len(indices) != 1 or not same_shape(before.shape, after.shape) or before.dtype is not after.dtype:  # type: ignore[union-attr]
        return None
    steps = (node, exponential, exponential.args[0])
    changed = any(example.is_written(n) for n in steps) or not is_unchanged(logits, exponential.args[0], example)
    if changed or not all(_is_only_writer(s.node, example) for s in (added, maximum)):
        return None
    return Softmax(node, exponential.args[0], below.index, (added, maximum))


def _is_only_writer(node: fx.Node, example: Example) -> bool:
    return all(writer is node for writer in example.writers.get(storage_key(value(node)), ()))  # type: ignore[arg-type]


def _without_epsilon(node: fx.Node) -> fx.Node:
    added = operands(node) if name_of(node) == "add" else None
    dtype = value(node).dtype  # type: ignore[union-attr]
    if added is not None and isinstance(added[1], float) and 0 <= added[1] < torch.finfo(dtype).eps / 2:
        return added[0]
    return node


def _attached(node: fx.Node) -> fx.Node:
    while name_of(node) == "detach":
        node = node.args[0]  # type: ignore[assignment]
    return node
