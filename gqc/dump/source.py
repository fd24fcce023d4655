"""Python text of the nodes of a graph."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from gqc.dump.relations import NamedRelation, is_relation, reversed_nodes
from gqc.passes.nodes import example

_RESERVED = frozenset({"aten", "ops", "torch", "gqc", "joint", "forward", "backward", "outputs", "gradients"})
_NAMESPACES = {"aten": "aten", "gqc": "ops"}


class Source:
    """Writes calls as Python; relations that the graph takes appear under their names.

    Attributes:
        modules: what the text written so far imports, besides torch and gqc.
    """

    def __init__(self, relations: Sequence[NamedRelation]) -> None:
        self.modules: set[str] = set()
        self._relations: dict[tuple[fx.Node, ...], str] = {}
        for relation in relations:
            self._relations[relation.nodes] = relation.name
            self._relations.setdefault(tuple(reversed_nodes(relation)), f"{relation.name}_reversed")

    def call(self, node: fx.Node) -> str:
        """The expression that computes a node."""
        if node.op == "get_attr":
            return identifier(str(node.target).replace(".", "_"))
        if node.target is operator.getitem:
            return f"{self.argument(node.args[0])}[{self.argument(node.args[1])}]"
        arguments = [self.argument(a) for a in node.args]
        arguments += [f"{key}={self.argument(value)}" for key, value in node.kwargs.items()]
        return f"{self.target(node.target)}({', '.join(arguments)})"

    def target(self, target: str | Callable[..., Any]) -> str:
        """The function that a node calls."""
        if target is operator.getitem:
            return "getitem"
        if isinstance(target, OpOverload):
            namespace, name = target._schema.name.split("::")
            space = _NAMESPACES.get(namespace, f"torch.ops.{namespace}")
            return f"{space}.{name}.{target._overloadname}"
        name = torch.fx.node._get_qualified_name(target).removeprefix("_")  # type: ignore[arg-type]
        self.modules.add(name.split(".")[0])
        return name

    def argument(self, value: Any) -> str:
        """A constant, a node or a list of them."""
        if is_relation(value) and tuple(value) in self._relations:
            return self._relations[tuple(value)]
        if isinstance(value, fx.Node):
            return identifier(value.name)
        if isinstance(value, tuple):
            return f"({', '.join(map(self.argument, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.argument, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self.argument(v)}' for key, v in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.argument, (value.start, value.stop, value.step)))})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            return f'float("{value}")'
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, torch.SymInt):
            return str(example(value))
        return repr(value)


def identifier(name: str) -> str:
    """The variable of a node: its name, unless the file gives that another meaning."""
    return f"{name}_" if name in _RESERVED else name
