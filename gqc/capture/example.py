"""Values of recorded nodes on the real arguments of the captured call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def real_tensors() -> Iterator[None]:
    """Run code on real tensors although a trace is in progress."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def storage_key(tensor: Tensor) -> int:
    """Equal for tensors, real or fake, that share memory."""
    return tensor.untyped_storage()._cdata


class Example:
    """Evaluates recorded nodes, on demand and in the order of recording, without changing the user's tensors.

    Attributes:
        leaves: real tensors of placeholder and get_attr nodes.
        writers: nodes that change a tensor in place, by the memory (of the fake tensor) that they change.
    """

    def __init__(self) -> None:
        self.leaves: dict[fx.Node, Tensor] = {}
        self.writers: dict[int, list[fx.Node]] = {}
        self._values: dict[fx.Node, Any] = {}

    def value(self, node: Any) -> Any:
        """The value of a node (anything else is returned as it is), computed without gradients."""
        if not isinstance(node, fx.Node):
            return node
        if node not in self._values:
            needed = self.ancestors([node])
            with real_tensors(), torch.no_grad():
                for step in node.graph.nodes:
                    if step in needed and step not in self._values:
                        self._values[step] = self._compute(step)
        return self._values[node]

    def python_value(self, node: fx.Node) -> Any:
        """The value of a node with one element as a Python number."""
        value = self.value(node)
        with real_tensors():
            return value.item()

    def is_written(self, node: fx.Node) -> bool:
        """Whether something recorded so far writes to the memory of a node's result."""
        return storage_key(node.meta["val"]) in self.writers

    def of_copy(self, copies: dict[fx.Node, fx.Node]) -> Example:
        """What is known of a copy of the graph, without real tensors."""
        example = Example()
        example.writers = {key: [copies[node] for node in nodes] for key, nodes in self.writers.items()}
        return example

    def set(self, node: fx.Node, value: Any) -> None:
        """Give the value of a node whose computation must not be repeated."""
        self._values[node] = value

    def ancestors(
        self,
        nodes: list[fx.Node],
        stop: Callable[[fx.Node], bool] = lambda node: False,
        until: fx.Node | None = None,
    ) -> set[fx.Node]:
        """All nodes that ``nodes`` depend on, in-place writers to their memory included, and ``nodes`` themselves.

        What the nodes for which ``stop`` holds depend on is left out. Writers are those before ``until``, by default
        those before the last of ``nodes``.
        """
        order = {node: i for i, node in enumerate(nodes[0].graph.nodes)} if nodes else {}
        limit = max((order[node] for node in nodes), default=0) if until is None else order[until]
        found: set[fx.Node] = set()
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node in found:
                continue
            found.add(node)
            if stop(node):
                continue
            todo.extend(node.all_input_nodes)
            for tensor in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(tensor, Tensor) and self.writers:
                    todo.extend(w for w in self.writers.get(storage_key(tensor), ()) if order[w] <= limit)
        return found

    def _compute(self, node: fx.Node) -> Any:
        if node in self.leaves:
            leaf = self.leaves[node].detach()
            return leaf.clone() if node.meta.get("buffer") or self.is_written(node) else leaf
        args = fx.map_arg(node.args, self._values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self._values.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)
