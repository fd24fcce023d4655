"""What a capture assumes about its inputs, checked at every call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch import Tensor
from torch.utils._sympy.printers import PythonPrinter

from gqc.capture.example import Example
from gqc.capture.memory import ByIdentity
from gqc.capture.modules import AttributeGuard
from gqc.capture.program import Program
from gqc.capture.sizes import GENERIC_SIZE, Sizes
from gqc.capture.tracer import ValueGuard
from gqc.errors import CaptureError


@dataclass
class _Check:
    """One assumption on values: positions of its values among the program's outputs, and the test."""

    outputs: tuple[int, ...]
    holds: Callable[..., bool]
    text: str


class Guards:
    """All assumptions of one capture.

    Attributes:
        shape: conditions on argument sizes, as text.
        values: conditions on values or on data-dependent sizes, as text.
        expensive: the values depend on floating-point data, so they are computed again at each call.
    """

    def __init__(
        self,
        sizes: Sizes,
        example: Example,
        placeholders: list[fx.Node],
        values: list[ValueGuard],
        attributes: list[AttributeGuard],
        model: torch.nn.Module,
        constants: dict[str, Tensor],
        first: int,
    ) -> None:
        self._sizes = sizes
        self._index = {node: i for i, node in enumerate(placeholders)}
        self._attributes = attributes
        self._first = first
        self._values = values
        self._model = model
        self._constants = constants
        self._example = example
        self.expensive = False
        self.values: list[str] = []
        self._build_values()
        self.update()

    # ---- sizes of arguments

    def update(self) -> None:
        """Read the guards of the ShapeEnv again; needed after anything else (AOTAutograd) has traced with the fakes."""
        conditions = dict.fromkeys(
            expr for i, expr in self._guard_exprs() if not self._is_data_dependent(expr) and self._relevant(i, expr)
        )
        symbols = {s: src for s, src in self._sizes.sources.items() if src[0] in self._index}
        lines = ["def failed(flat):"]
        for symbol, (node, axis) in symbols.items():
            lines.append(f"    {symbol} = flat[{self._index[node]}].size({axis})")
        self.shape = [f"{s} >= 2" for s in symbols] + [_PRINTER.doprint(expr) for expr in conditions]
        lines += [f"    if not ({condition}): return {i}" for i, condition in enumerate(self.shape)]
        lines.append("    return None")
        self._failed_shape = _define("\n".join(lines))

    def _guard_exprs(self) -> list[tuple[int, sympy.Basic]]:
        return [(i, g.expr) for i, g in enumerate(self._sizes.env.guards) if i >= self._first]

    def _is_data_dependent(self, expr: sympy.Basic) -> bool:
        return not self._sizes.data_dependent.isdisjoint(expr.free_symbols)

    def _relevant(self, position: int, expr: sympy.Basic) -> bool:
        """False for torch's own questions whether a data-dependent size is one of the special cases 0 and 1."""
        if position not in self._sizes.internal or not self._is_data_dependent(expr):
            return True
        generic = dict.fromkeys(expr.free_symbols, GENERIC_SIZE)
        return not (len(generic) == 1 and expr.subs(generic) is sympy.true)

    # ---- values

    def _build_values(self) -> None:
        outputs: list[fx.Node] = []
        self._checks: list[_Check] = []

        def output(node: fx.Node) -> int:
            if node not in outputs:
                outputs.append(node)
            return outputs.index(node)

        for guard in self._values:
            text = f"{guard.name} at {guard.location or 'an unknown line'} is {guard.value!r}"
            self._checks.append(_Check((output(guard.node),), _equals(guard.value), text))
        for position, expr in self._guard_exprs():
            if not self._is_data_dependent(expr) or not self._relevant(position, expr):
                continue
            symbols = sorted(expr.free_symbols, key=str)
            nodes = []
            for symbol in symbols:
                nodes.append(output(self._sizes._symbol(symbol)))
            arguments = ", ".join(map(str, symbols))
            holds = _define(f"def holds({arguments}):\n    return {_PRINTER.doprint(expr)}")
            self._checks.append(_Check(tuple(nodes), holds, f"data-dependent size: {expr}"))
        self.values = [check.text for check in self._checks]
        self._evaluate = self._evaluator(outputs) if outputs else None

    def _evaluator(self, outputs: list[fx.Node]) -> Callable[[Sequence[Tensor]], Any]:
        program = Program(outputs, self._example)
        for node in program.nodes:
            if node.meta.get("random"):
                where = node.meta["custom"]["gqc"]
                raise CaptureError(
                    "a Python decision depends on random numbers", module=where["module"], location=where["line"]
                )
        self.expensive = not program.integer_only
        forward = program.forward if self.expensive else ByIdentity(program.forward)
        read = [self._reader(node) for node in program.tensors]
        sizes = [(self._index[node.args[0]], node.args[1]) for node in program.sizes]

        def evaluate(flat: Sequence[Tensor]) -> Any:
            with torch.no_grad():
                return forward(*(get(flat) for get in read), *(flat[i].size(axis) for i, axis in sizes))

        return evaluate

    def _reader(self, node: fx.Node) -> Callable[[Sequence[Tensor]], Tensor]:
        if node.op == "placeholder":
            return operator.itemgetter(self._index[node])
        if node.target in self._constants:
            constant = self._constants[node.target]
            return lambda flat: constant
        owner, _, name = node.target.rpartition(".")
        module = self._model.get_submodule(owner)
        return lambda flat: getattr(module, name)

    def check(self, flat: Sequence[Tensor]) -> str | None:
        """Why the capture does not hold for these inputs, ``None`` if it does."""
        for guard in self._attributes:
            if not guard.holds():
                return f"attribute '{guard.name}' of module '{guard.module}' was {guard.value!r}"
        failed = self._failed_shape(flat)
        if failed is not None:
            return f"argument sizes: not {self.shape[failed]}"
        if self._evaluate is not None:
            values = self._evaluate(flat)
            for check in self._checks:
                if not check.holds(*(values[i] for i in check.outputs)):
                    return f"not {check.text}"
        return None


_PRINTER = PythonPrinter()


def _define(source: str) -> Callable[..., Any]:
    """The function that ``source`` defines; it may use what torch's printer of size expressions writes."""
    namespace: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile(source, "<gqc guard>", "exec"), namespace)
    return next(value for name, value in namespace.items() if source.startswith(f"def {name}("))


def _equals(expected: Any) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return bool(value == expected) or (value != value and expected != expected)

    return holds
