"""What a capture assumes about its inputs, checked at every call."""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx as fx
from torch import Tensor
from torch.utils._sympy.printers import PythonPrinter

from gqc.capture.example import Example
from gqc.capture.modules import AttributeGuard
from gqc.capture.sizes import GENERIC_SIZE, Sizes
from gqc.capture.tracer import ValueGuard
from gqc.errors import CaptureError


def stamp(tensor: Tensor) -> tuple[int, int] | None:
    """Changes whenever a tensor's content may have changed; ``None`` if torch does not count its versions."""
    return None if tensor.is_inference() else (id(tensor), tensor._version)


class ByIdentity:
    """Remembers the last results of a function of integer tensors by their identity and version.

    A result is dropped when one of its tensors dies. Tensors made in inference mode have no version: no caching.
    """

    def __init__(self, fn: Callable[..., Any], capacity: int = 8) -> None:
        self._fn = fn
        self._capacity = capacity
        self._results: OrderedDict[Any, tuple[list[weakref.ref[Tensor]], Any]] = OrderedDict()

    def __call__(self, *args: Any) -> Any:
        tensors = [x for x in args if isinstance(x, Tensor)]
        stamps = [stamp(x) for x in tensors]
        if None in stamps:
            return self._fn(*args)
        key = (*stamps, *(x for x in args if not isinstance(x, Tensor)))
        hit = self._results.get(key)
        if hit is not None and all(ref() is x for ref, x in zip(hit[0], tensors, strict=True)):
            return hit[1]
        result = self._fn(*args)
        results = self._results

        def forget(_: Any) -> None:
            results.pop(key, None)

        results[key] = ([weakref.ref(x, forget) for x in tensors], result)
        while len(results) > self._capacity:
            results.popitem(last=False)
        return result


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
            text = f"{guard.node.format_node() or guard.node.name} is {guard.value!r} (at {guard.location})"
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
        self._program = self._extract(outputs) if outputs else None

    def _extract(self, outputs: list[fx.Node]) -> Callable[[Sequence[Tensor]], Any]:
        needed = self._example.ancestors(outputs)
        nodes = [node for node in outputs[0].graph.nodes if node in needed]
        inputs = [node for node in nodes if node.op == "placeholder"]
        leaves = [node for node in nodes if node.op == "get_attr"]
        for node in nodes:
            if node.meta.get("random"):
                where = node.meta["custom"]["gqc"]
                raise CaptureError(
                    "a Python decision depends on random numbers", module=where["module"], location=where["line"]
                )
        graph = fx.Graph()
        copies = {node: graph.placeholder(node.name) for node in (*inputs, *leaves)}
        for node in (*inputs, *leaves):
            if node.meta.get("buffer") or self._example.is_written(node):
                copies[node] = graph.call_method("clone", (copies[node],))
        for node in nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in outputs))
        module = fx.GraphModule({}, graph)
        self.expensive = bool(leaves) or any(node.meta["val"].is_floating_point() for node in inputs)
        forward = module.forward if self.expensive else ByIdentity(module.forward)
        used = [self._index[node] for node in inputs]
        state = [self._getter(node.target) for node in leaves]

        def run(flat: Sequence[Tensor]) -> Any:
            with torch.no_grad():
                return forward(*(flat[i] for i in used), *(get() for get in state))

        return run

    def _getter(self, target: str) -> Callable[[], Tensor]:
        if target in self._constants:
            constant = self._constants[target]
            return lambda: constant
        owner, _, name = target.rpartition(".")
        module = self._model.get_submodule(owner)
        return lambda: getattr(module, name)

    def check(self, flat: Sequence[Tensor]) -> str | None:
        """Why the capture does not hold for these inputs, ``None`` if it does."""
        for guard in self._attributes:
            if not guard.holds():
                return f"attribute '{guard.name}' of module '{guard.module}' was {guard.value!r}"
        failed = self._failed_shape(flat)
        if failed is not None:
            return f"argument sizes: not {self.shape[failed]}"
        if self._program is not None:
            values = self._program(flat)
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
