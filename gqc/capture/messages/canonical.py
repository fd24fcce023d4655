"""Which nodes of a graph compute the same, where that is integers from integers."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import torch.fx as fx

from gqc.capture.example import Example
from gqc.capture.messages.calls import name_of, value


class Canonical:
    """Gives the first of all nodes that compute the same as a node.

    Each layer of a model selects the rows of ``edge_index`` anew. Nodes that are not among the ``structural``, which
    come in graph order, random ones and those whose memory is written are only equal to themselves.
    """

    def __init__(self, structural: Collection[fx.Node], example: Example) -> None:
        self._structural = structural
        self._example = example
        self._first: dict[Hashable, fx.Node] = {}
        self._known: dict[fx.Node, fx.Node] = {}
        for node in structural:
            self(node)

    def __call__(self, node: fx.Node) -> fx.Node:
        if node not in self._known:
            self._known[node] = self._first.setdefault(self._key(node), node)
        return self._known[node]

    def _key(self, node: fx.Node) -> Hashable:
        computed = node.op in ("call_function", "call_method") and node in self._structural
        written = value(node) is not None and self._example.is_written(node)
        if not computed or written or node.meta.get("writes") or node.meta.get("random"):
            return node
        # By target, not by name: two eager islands of one name are two functions.
        target = name_of(node) if isinstance(node.target, str) else node.target
        return target, self._frozen(node.args), self._frozen(node.kwargs)

    def _frozen(self, argument: Any) -> Hashable:
        if isinstance(argument, fx.Node):
            return self(argument)
        if isinstance(argument, list | tuple):
            return tuple(map(self._frozen, argument))
        if isinstance(argument, dict):
            return tuple((key, self._frozen(item)) for key, item in argument.items())
        if isinstance(argument, slice):
            return slice, self._frozen((argument.start, argument.stop, argument.step))
        return type(argument), argument
