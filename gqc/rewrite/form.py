"""One way of calling a model (training, evaluation) as functions and a method."""

from __future__ import annotations

import ast

import sympy
from torch import fx
from torch.utils._sympy.printers import PythonPrinter

from gqc.capture.guards import ValueGuards
from gqc.capture.islands import StructureIsland
from gqc.capture.program import Program
from gqc.errors import RewriteError
from gqc.joint import BUFFER
from gqc.passes.nodes import aten, is_updated
from gqc.rewrite.calls import literal
from gqc.rewrite.function import FunctionWriter, Given, RelationPart
from gqc.rewrite.layout import Group, docstring, statement
from gqc.rewrite.names import Scope, identifier
from gqc.rewrite.parts import Parts, assign, result_tuple, signature
from gqc.rewrite.results import ResultWriter
from gqc.rewrite.stage import StageWriter
from gqc.variant import CompiledStage, IslandStep, Variant

_PRINTER = PythonPrinter()
_SMALLEST = 2
"""torch takes sizes of 0 and 1 for special cases, so a symbolic size is never smaller."""


class FormWriter:
    """Writes one form; its functions go to ``parts``.

    Args:
        parts: shared with the other forms.
        mode: its name, one of :data:`gqc.runtime.rewritten.MODES`.
        variant: the model compiled for this way of calling it.

    Attributes:
        checks: statements that check what the form assumes of a call.
        body: the statements that run it, ``checks`` apart.
    """

    def __init__(self, parts: Parts, mode: str, variant: Variant) -> None:
        self._parts, self._variant = parts, variant
        self._prefix = identifier(mode)
        self._values: dict[str, Given] = {}
        self._positions = {name: i for i, name in enumerate(variant.names)}
        self._scope = Scope(parts.arguments.names() | {parts.arguments.local(name) for name in ("mode", "seed")})
        self.checks: list[str] = []
        self.body: list[str] = []
        self._conditions()
        for guards in variant.captured.guards.values:
            if guards.program is not None:
                self._decisions(guards, guards.program)
        for step in variant.steps:
            if isinstance(step, CompiledStage):
                self.body += StageWriter(parts, self, step, mode).write()
            else:
                self._structure(step)
        names = [str(self.read(name)) for name in variant.results]
        results = ResultWriter(variant.captured.outputs, lambda i: names[i], parts.arguments, parts.state, parts.paths)
        self.body += [*results.effects(), *statement("return ", results.value(), 8)]

    # ---- values

    def given(self, name: str) -> Given:
        """What a value of the variant is called in the method."""
        if name in self._positions:
            return self._parts.arguments.given[self._positions[name]]
        return self._values[name]

    def read(self, name: str) -> Given:
        """The same for a value that is read, so that an argument must be checked."""
        if name in self._positions:
            self._parts.arguments.uses.add(self._positions[name])
        return self.given(name)

    def size(self, name: str, axis: int) -> str | None:
        """Source of the size of an argument, if it can be told without the argument."""
        position = self._positions.get(name)
        return None if position is None else self._parts.arguments.sizes.get((position, axis))

    def define(self, value: str, name: str) -> str:
        """Give a value of the variant a name in the method."""
        taken = self._scope.take(name)
        self._values[value] = taken
        return taken

    # ---- guards

    def _conditions(self) -> None:
        """Checks of conditions on the sizes of arguments."""
        arguments, shapes = self._parts.arguments, self._variant.captured.guards.shapes
        symbols: dict[sympy.Symbol, sympy.Expr] = {}
        smallest: dict[sympy.Symbol, None] = {}
        for symbol, place in shapes.symbols.items():
            size = _expression(arguments.sizes[place])
            symbols[symbol] = size
            if isinstance(arguments.given[place[0]], RelationPart):
                smallest.update(dict.fromkeys(size.free_symbols))
        for position, axis, number in shapes.fixed:
            if isinstance(arguments.given[position], RelationPart):
                self._check(_printed(sympy.Eq(_expression(arguments.sizes[position, axis]), number)))
        for size in smallest:
            self._check(f"{size} >= {_SMALLEST}")
        for condition in dict.fromkeys(c.subs(symbols) for c in shapes.conditions):
            if not _always_holds(condition):
                self._check(_printed(condition))

    def _check(self, condition: str, what: str = "") -> None:
        self._use_names(condition)
        self.checks += statement("", Group("check(", [condition, literal(what or condition)]), 8)

    def _use_names(self, text: str) -> None:
        """Note which arguments a text reads."""
        for position, given in enumerate(self._parts.arguments.given):
            name, marks = (given, "{}.") if isinstance(given, str) else (given.relation, "({})")
            if marks.format(name) in text:
                self._parts.arguments.uses.add(position)

    def _decisions(self, guards: ValueGuards, program: Program) -> None:
        """Checks of what Python decided in forward on values, computed again for the call."""
        updated = self._updated_buffers()
        for node in program.tensors:
            if node.op == "get_attr" and str(node.target) in updated:
                raise RewriteError(
                    f"forward decides in Python on buffer '{node.target}', which it changes at each call "
                    f"({'; '.join(guards.texts)}): leave the decision out (of a batch norm: give momentum a number)"
                )
        doc = "What forward decides in Python, and sizes that depend on data."
        outputs = list(dict.fromkeys(node for nodes in guards.nodes for node in nodes))
        operands = [self._tensor(n.name) for n in program.tensors if n.op == "placeholder"]
        operands += [self._state(str(n.target)) for n in program.tensors if n.op == "get_attr"]
        operands += [self._size(n.args[0].name, n.args[1]) for n in program.sizes]
        names, call = self._program("decisions", program, doc, operands, remembered=not guards.expensive)
        taken = [self._scope.take(name) for name in names]
        self.checks += assign(taken, call)
        results = dict(zip(outputs, taken, strict=True))
        for text, expected, nodes in zip(guards.texts, guards.expected, guards.nodes, strict=True):
            if isinstance(expected, sympy.Basic):
                symbols = sorted(expected.free_symbols, key=str)
                named = {s: sympy.Symbol(results[node]) for s, node in zip(symbols, nodes, strict=True)}
                self._check(_printed(expected.subs(named)))
            else:
                self._decision(results[nodes[0]], expected, nodes[0], text)

    def _updated_buffers(self) -> set[str]:
        stages = [step for step in self._variant.steps if isinstance(step, CompiledStage)]
        return {p.name for s in stages for p in s.joint.placeholders if p.kind == BUFFER and is_updated(p.node)}

    def _decision(self, name: str, expected: object, node: fx.Node, text: str) -> None:
        recorded = node.meta.get("custom", {}).get("gqc", {})
        found = self._parts.lines.find(recorded.get("module", ""), recorded.get("line", ""))
        what = f"{found.text} ({recorded['line']}) decides {expected!r}" if found.text else text
        if not isinstance(expected, (bool, int, str, float)) or expected != expected:
            raise RewriteError(f"a Python decision on {expected!r} cannot be written down ({what})")
        if isinstance(expected, bool):
            self._check(name if expected else f"not {name}", what)
        else:
            self._check(f"{name} == {literal(expected)}", what)

    # ---- programs on structure

    def _structure(self, step: IslandStep) -> None:
        island = step.call.island
        if not isinstance(island, StructureIsland):
            raise RewriteError(f"module '{island.name}' runs eagerly ({island.reason}), and cannot be written down")
        graph = step.call.graph.graph
        (call,) = (n for n in graph.nodes if n.target is island)
        operands = [self._operand(n, step) for n in call.args]
        doc = "What depends on the graph alone, remembered while the graph is the same."
        names, source = self._program("structure", island.program, doc, operands, remembered=True)
        picked = {n: n.args[1] for n in call.users}
        written = {picked[n]: name for n, name in zip(graph.output_node().args[0], step.call.writes, strict=True)}
        targets = [self.define(written[i], name) if i in written else "_" for i, name in enumerate(names)]
        self.body += assign(targets, source)

    def _operand(self, node: fx.Node, step: IslandStep) -> tuple[str, str, str]:
        if node.op == "placeholder":
            return self._tensor(node.name)
        if node.op == "get_attr":
            return self._state(str(node.target), step.call.graph)
        if node.target is aten.sym_size.int:
            return self._size(node.args[0].name, node.args[1])  # type: ignore[union-attr,arg-type]
        raise RewriteError(f"structure is computed from {node.format_node()}, which cannot be written down")

    # Operands of a program: name and type in its function, source at the call.

    def _tensor(self, name: str) -> tuple[str, str, str]:
        given = self.read(name)
        return (given, "Tensor", given) if isinstance(given, str) else (identifier(str(given)), "Tensor", str(given))

    def _size(self, name: str, axis: int) -> tuple[str, str, str]:
        source = self._parts.arguments.sizes[self._positions[name], axis]
        self._use_names(source)
        return f"{identifier(str(self.given(name)))}_{'rows' if axis == 0 else f'size_{axis}'}", "int", source

    def _state(self, target: str, graph: fx.GraphModule | None = None) -> tuple[str, str, str]:
        return identifier(target), "Tensor", self.attribute(target, graph)

    def attribute(self, target: str, graph: fx.GraphModule | None = None) -> str:
        """Source of a parameter, a buffer or a constant that a graph, by default the captured one, reads."""
        return self._parts.attribute(graph or self._variant.captured.graph, target)

    def _program(
        self, name: str, program: Program, doc: str, operands: list[tuple[str, str, str]], *, remembered: bool
    ) -> tuple[list[str], Group]:
        """Add the function of a program; returns what its results are called in it, and the call."""
        name = self._parts.arguments.local(name)
        scope = Scope()
        inner = [scope.take(inside) for inside, _, _ in operands]
        given = dict(zip(program.graph.find_nodes(op="placeholder"), inner, strict=True))
        writer = FunctionWriter(program.graph, given, self._parts.lines, {})
        body = writer.write()
        results = [writer.text(n) for n in program.graph.output_node().args[0]]  # type: ignore[union-attr]
        parameters = [f"{n}: {kind}" for n, (_, kind, _) in zip(inner, operands, strict=True)]
        head = ["@remembered"] * remembered + ["@torch.no_grad()"]
        head += signature("{name}", parameters, "tuple[Any, ...]")
        function = self._parts.share(name, self._prefix, [*head, *docstring(doc), *body, *result_tuple(results)])
        names = [str(text) if str(text).isidentifier() else name for text in results]
        return names, Group(f"{function}(", [source for *_, source in operands])


def _printed(expression: sympy.Basic) -> str:
    """An expression as Python source."""
    return ast.unparse(ast.parse(_PRINTER.doprint(expression), mode="eval"))


def _expression(source: str) -> sympy.Expr:
    """A size as an expression of one symbol that prints as its source."""
    base = source.removesuffix(" + 1")
    symbol = sympy.Symbol(base, integer=True, nonnegative=True)
    return symbol + 1 if base != source else symbol


def _always_holds(condition: sympy.Basic) -> bool:
    """Whether a condition follows from sizes being large enough."""
    if condition in (sympy.true, True):
        return True
    if len(condition.free_symbols) != 1:
        return False
    more = sympy.Symbol("more", integer=True, nonnegative=True)
    (symbol,) = condition.free_symbols
    return condition.subs({symbol: more + _SMALLEST}) in (sympy.true, True)
