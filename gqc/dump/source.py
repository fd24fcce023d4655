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


class Source:
    """Writes calls as Python; relations that the graph takes appear under their names.

    Attributes:
        modules: what the text written so far imports, besides torch and gqc.
        signatures: of gqc's ops that it calls, by name.
    """

    def __init__(self, relations: Sequence[NamedRelation]) -> None:
        self.modules: set[str] = set()
        self.signatures: dict[str, str] = {}
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
        schema = getattr(node.target, "_schema", None)
        arguments = self._by_schema(schema, node.args) if schema else [self.argument(a) for a in node.args]
        arguments += [f"{key}={self.argument(value)}" for key, value in node.kwargs.items()]
        return f"{self.target(node.target)}({', '.join(arguments)})"

    def target(self, target: str | Callable[..., Any]) -> str:
        """The function that a node calls."""
        if target is operator.getitem:
            return "getitem"
        if isinstance(target, OpOverload):
            namespace, name = target._schema.name.split("::")
            if namespace == "gqc":  # its ops have no overloads
                self.signatures[name] = str(target._schema).removeprefix("gqc::")
                return f"ops.{name}"
            return f"{'aten' if namespace == 'aten' else f'torch.ops.{namespace}'}.{name}.{target._overloadname}"
        name = torch.fx.node._get_qualified_name(target).removeprefix("_")  # type: ignore[arg-type]
        self.modules.add(name.split(".")[0])
        return name

    def _by_schema(self, schema: torch.FunctionSchema, args: Sequence[Any]) -> list[str]:
        """Arguments by the names of the schema from the first constant on, for readers who do not know its order."""
        texts: list[str] = []
        named = False
        for parameter, value in zip(schema.arguments, args, strict=False):
            named = named or (bool(texts) and not isinstance(value, fx.Node | str | list | tuple))
            text = self.argument(value)
            texts.append(f"{parameter.name}={text}" if named and parameter.name != "self" else text)
        return texts

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
