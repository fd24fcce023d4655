"""What a rewritten model returns and what it leaves behind in graphs and modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch.utils._pytree as pytree

from gqc.capture.outputs import Argument, Attribute, GraphBack, OutputPlan, Result, Size
from gqc.errors import RewriteError
from gqc.rewrite.arguments import Arguments, column_source
from gqc.rewrite.calls import literal
from gqc.rewrite.layout import Group, Text, statement, tuple_of
from gqc.rewrite.state import State
from gqc.text import a_kind


class ResultWriter:
    """Writes an :class:`OutputPlan`.

    Args:
        plan: what becomes of the flat results.
        result: source of a flat result by its position.
        arguments: source of the arguments.
        state: source of the modules.
        paths: dotted path of each module by identity.
    """

    def __init__(
        self, plan: OutputPlan, result: Callable[[int], str], arguments: Arguments, state: State, paths: dict[int, str]
    ) -> None:
        self._plan, self._result, self._arguments, self._state, self._paths = plan, result, arguments, state, paths

    def effects(self) -> list[str]:
        """Statements that write to graphs and modules."""
        lines: list[str] = []
        for writes in self._plan.graph_writes:
            for name, source in writes.columns.items():
                lines += self._column(writes.graph, name, source)
        for module, name, source in self._plan.attribute_writes:
            target = f"{self._state.require(self._paths[id(module)])}.{name}"
            lines += statement(f"{target} = ", self._source(source), 8)
        return lines

    def _column(self, graph: int, name: str, source: Any) -> list[str]:
        argument = self._plan.inputs.graphs[graph]  # type: ignore[union-attr]
        owner = self._arguments.graphs[graph]
        if not hasattr(argument.schema, "etypes"):
            *store, attribute = name.split("|")
            target = f"{owner}[{', '.join(map(literal, store))}].{attribute}" if store else f"{owner}.{attribute}"
        else:
            target = column_source(owner, argument.schema, name)
        if source is None:
            return [f"        del {target}"]
        return statement(f"{target} = ", self._source(source), 8)

    def value(self) -> Text:
        """The expression that forward returns."""
        leaves = [self._source(leaf) for leaf in self._plan.leaves]
        return _structure(pytree.tree_unflatten(list(map(_Leaf, leaves)), self._plan.spec))

    def _source(self, source: Any) -> str:
        if type(source) is Result:
            return self._result(source.position)
        if type(source) is Size:
            return f"{self._result(source.position)}.shape[0]"
        if type(source) is Argument:
            return self._arguments.as_passed[source.position]
        if type(source) is GraphBack:
            return self._arguments.graphs[source.position]
        if type(source) is Attribute:
            path = self._paths[id(source.module)]
            return self._state.access(f"{path}.{source.name}".lstrip("."))
        return literal(source.value)


class _Leaf:
    def __init__(self, text: str) -> None:
        self.text = text


def _structure(value: Any) -> Text:
    if isinstance(value, _Leaf):
        return value.text
    if type(value) is tuple:
        return tuple_of([_structure(x) for x in value])
    if type(value) is list:
        return Group("[", [_structure(x) for x in value], "]")
    if type(value) is dict:
        return Group("{", [f"{literal(k)}: {_structure(x)}" for k, x in value.items()], "}")
    if type(value) is OrderedDict:
        pairs = [tuple_of([literal(k), _structure(x)]) for k, x in value.items()]
        return Group("OrderedDict(", [Group("[", pairs, "]")])
    if value is None:
        return "None"
    way_out = (
        "return a plain tuple" if isinstance(value, tuple) else "return tensors, or tuples, lists and dicts of them"
    )
    raise RewriteError(f"forward returns {a_kind(value)}, which cannot be written down; {way_out}")
