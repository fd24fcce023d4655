"""What a capture assumes about its inputs, checked at every call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch import Tensor
from torch.utils._sympy.printers import PythonPrinter

from gqc.capture.attributes import AttributeGuard, MissingGuard, TieGuard
from gqc.capture.example import Example
from gqc.capture.islands import Island
from gqc.capture.program import Program, is_argument_size
from gqc.capture.sizes import Sizes, is_size
from gqc.capture.tracer import ValueGuard
from gqc.errors import CaptureError
from gqc.runtime.memory import ByIdentity

Flat = Sequence[Tensor]
Attribute = Callable[[str], Callable[[], Tensor]]
_PRINTER = PythonPrinter()


class ShapeGuards:
    """Conditions on the sizes of arguments, compiled to one function.

    Args:
        sizes: the symbols; their guards from position ``first`` on must hold.
        placeholders: the nodes of the flat tensors, in order.

    Attributes:
        texts: the conditions. Sizes that are no symbols are those of the captured call, and symbols are 2 or more,
            which torch takes for granted.
        fixed: position, axis and size of the sizes that are no symbols.
        symbols: position and axis of each symbol.
        conditions: what must hold of the symbols.
    """

    def __init__(self, sizes: Sizes, placeholders: Sequence[fx.Node], first: int) -> None:
        self._sizes = sizes
        self._first = first
        self._traced = len(sizes.env.guards)
        index = {node: i for i, node in enumerate(placeholders)}
        self.fixed = [
            (i, axis, size)
            for i, node in enumerate(placeholders)
            for axis, size in enumerate(node.meta["val"].shape)
            if isinstance(size, int)
        ]
        self.symbols = {s: (index[node], axis) for s, (node, axis) in sizes.sources.items() if node in index}
        self.texts: list[str] = []
        self.conditions: list[sympy.Basic] = []
        self.update()

    def update(self) -> list[sympy.Basic]:
        """Compile again, with the guards that were added since; returns new conditions on data-dependent sizes."""
        known, self._traced = self._traced, len(self._sizes.env.guards)
        self._sizes.internal.update(range(known, self._traced))
        self.conditions = [c for c in self._sizes.conditions(self._first) if not self._sizes.depends_on_data(c)]
        self.texts = [f"flat[{i}].size({axis}) == {size}" for i, axis, size in self.fixed]
        self.texts += [f"{s} >= 2" for s in self.symbols]
        self.texts += [_PRINTER.doprint(c) for c in self.conditions]
        lines = ["def failed(flat):"]
        lines += [f"    {s} = flat[{i}].size({axis})" for s, (i, axis) in self.symbols.items()]
        lines += [f"    if not ({text}): return {i}" for i, text in enumerate(self.texts)]
        self._failed = _define("\n".join([*lines, "    return None"]), "failed")
        return [c for c in self._sizes.conditions(known) if self._sizes.depends_on_data(c)]

    def failed(self, flat: Flat) -> str | None:
        """The first condition that does not hold."""
        position = self._failed(flat)
        return None if position is None else self.texts[position]


class ValueGuards:
    """Python decisions on values, and conditions on data-dependent sizes: parts of the graph run to check them.

    Args:
        decisions: recorded decisions.
        conditions: on data-dependent sizes.
        size: gives the node that reads a symbol.
        example: knows what a value depends on.
        attribute: gives a function that reads a get_attr node's tensor.

    Attributes:
        texts: the conditions.
        expected: of each the value, or the condition on its nodes' values in the order of their symbols' names.
        nodes: of each the nodes that it looks at.
        program: computes these nodes; ``None`` where there are none.
        expensive: they depend on floating-point data, so they are computed again at each call.

    Raises:
        CaptureError: a decision depends on random numbers or on what an eager island computes, or it is a number that
            training changes.
    """

    def __init__(
        self,
        decisions: Sequence[ValueGuard],
        conditions: Sequence[sympy.Basic],
        size: Callable[[sympy.Symbol], fx.Node],
        example: Example,
        attribute: Attribute,
    ) -> None:
        self.texts: list[str] = []
        self.expected: list[Any] = []
        self.nodes: list[list[fx.Node]] = []
        self.program: Program | None = None
        self.expensive = False
        self._tests: list[Callable[..., bool]] = []
        for decision in decisions:
            _check_lasting(decision, example)
            text = f"{decision} is {decision.value!r}"
            self._add(text, decision.value, _equals(decision.value), [decision.node])
        for condition in conditions:
            symbols = sorted(condition.free_symbols, key=str)
            source = f"def holds({', '.join(map(str, symbols))}):\n    return {_PRINTER.doprint(condition)}"
            self._add(f"{condition}", condition, _define(source, "holds"), [size(symbol) for symbol in symbols])
        self._outputs = list(dict.fromkeys(node for nodes in self.nodes for node in nodes))
        self._evaluate = self._compile(example, attribute) if self._outputs else None

    def _add(self, text: str, expected: Any, test: Callable[..., bool], nodes: list[fx.Node]) -> None:
        self.texts.append(text)
        self.expected.append(expected)
        self.nodes.append(nodes)
        self._tests.append(test)

    def _compile(self, example: Example, attribute: Attribute) -> Callable[[Flat], Any]:
        for node in self._outputs:
            _check_repeatable(node, example)
        program = self.program = Program(self._outputs, example)
        self.expensive = not program.integer_only
        forward = program.forward if self.expensive else ByIdentity(program.forward)
        index = {node: i for i, node in enumerate(self._outputs[0].graph.find_nodes(op="placeholder"))}
        arguments = [operator.itemgetter(index[n]) for n in program.tensors if n.op == "placeholder"]
        state = [attribute(n.target) for n in program.tensors if n.op == "get_attr"]
        sizes = [(index[n.args[0]], n.args[1]) for n in program.sizes]

        def evaluate(flat: Flat) -> Any:
            tensors = [get(flat) for get in arguments] + [get() for get in state]
            with torch.no_grad():
                return forward(*tensors, *(flat[i].size(axis) for i, axis in sizes))

        return evaluate

    def failed(self, flat: Flat) -> str | None:
        """The first condition that does not hold."""
        if self._evaluate is None:
            return None
        values = dict(zip(self._outputs, self._evaluate(flat), strict=True))
        for text, holds, nodes in zip(self.texts, self._tests, self.nodes, strict=True):
            if not holds(*(values[node] for node in nodes)):
                return text
        return None


class MemoryGuards:
    """Arguments that forward changes in place: the graph writes to them, and takes them for tensors of their own.

    Args:
        written: their positions.
    """

    def __init__(self, written: Sequence[int]) -> None:
        self.written = written

    def failed(self, flat: Flat, copied: Container[int]) -> str | None:
        """The first condition that does not hold; ``copied`` are positions at which ``flat`` holds a copy."""
        for i in self.written:
            if i in copied:
                return f"tensor {i} is contiguous (forward changes it in place)"
            if sum(_overlap(x, flat[i]) for x in flat) > 1:
                return f"tensor {i} shares no memory with another (forward changes it in place)"
        return None


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes


class Guards:
    """All assumptions of one capture: module attributes, argument sizes and memory, values.

    Args:
        attributes, shapes, memory, values: the assumptions.
        late: makes value guards of conditions that are found after the capture.
    """

    def __init__(
        self,
        attributes: list[AttributeGuard | MissingGuard | TieGuard],
        shapes: ShapeGuards,
        memory: MemoryGuards,
        values: ValueGuards,
        late: Callable[[list[sympy.Basic]], ValueGuards],
    ) -> None:
        self.attributes = attributes
        self.shapes = shapes
        self.memory = memory
        self.values = [values]
        self._late = late

    @property
    def expensive(self) -> bool:
        """Whether floating-point data is computed again at each call."""
        return any(values.expensive for values in self.values)

    def update(self) -> None:
        """Needed after anything else (AOTAutograd) has traced with the fakes, which adds conditions on sizes."""
        if conditions := self.shapes.update():
            self.values.append(self._late(conditions))

    def check(self, flat: Flat, copied: Container[int] = ()) -> str | None:
        """Why the capture does not hold for these inputs, ``None`` if it does.

        Args:
            flat: the tensors of a call.
            copied: positions of those that are copies of what the user passed.
        """
        for guard in self.attributes:
            if not guard.holds():
                return str(guard)
        if (text := self.shapes.failed(flat)) is not None:
            return f"sizes of arguments: not {text}"
        if (text := self.memory.failed(flat, copied)) is not None:
            return f"arguments: not {text}"
        for values in self.values:
            if (text := values.failed(flat)) is not None:
                return f"values: not {text}"
        return None


def _check_repeatable(decided: fx.Node, example: Example) -> None:
    """Refuse a decision whose value cannot be computed once more beside the call itself."""
    for node in example.ancestors([decided], stop=is_argument_size):
        if node.meta.get("random"):
            reason = "random numbers"
        elif isinstance(node.target, Island) and not node.target.pure:
            reason = f"'{node.target.name}', which runs eagerly ({node.target.reason})"
        else:
            continue
        where = (decided.args[0] if is_size(decided) else decided).meta["custom"]["gqc"]
        raise CaptureError(f"a Python decision depends on {reason}", module=where["module"], location=where["line"])


def _check_lasting(decision: ValueGuard, example: Example) -> None:
    """Refuse a number that each training step changes, since no capture would hold for a second call."""
    if isinstance(decision.value, float) and torch.is_grad_enabled():
        for node in example.ancestors([decision.node]):
            if isinstance(node.meta.get("val"), torch.nn.Parameter) and node.meta["val"].requires_grad:
                where = decision.node.meta["custom"]["gqc"]
                reason = f"a Python number is computed from the parameter '{node.target}', which training changes"
                raise CaptureError(reason, module=where["module"], location=where["line"])


def _define(source: str, name: str) -> Callable[..., Any]:
    """The function that ``source`` defines; it may use what torch's printer of size expressions writes."""
    namespace: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile(source, "<gqc guard>", "exec"), namespace)
    return namespace[name]


def _equals(expected: Any) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return bool(value == expected) or (value != value and expected != expected)

    return holds
