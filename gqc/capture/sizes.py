"""Symbolic sizes: where each symbol comes from, and size expressions as graph nodes."""

from __future__ import annotations

from typing import Any

import sympy
import torch
import torch.fx as fx
from torch import SymBool, SymFloat, SymInt, Tensor
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import OptimizedPythonReferenceAnalysis

from gqc.errors import CaptureError

GENERIC_SIZE = 4099
"""Hint of a data-dependent size that is 0 or 1 in the example: torch would build these two in as special cases."""


def dynamic_axes(tensor: Tensor) -> tuple[int, ...]:
    """The axes of an argument that may change between calls.

    The last one of ``edge_index`` [2, E], both of a square matrix (an adjacency matrix [N, N]), else the first.
    """
    if tensor.dim() == 2 and tensor.shape[0] == 2 and not (tensor.is_floating_point() or tensor.is_complex()):
        return (1,)
    if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
        return (0, 1)
    return (0,) if tensor.dim() else ()


class Sizes:
    """The symbols of one capture.

    Attributes:
        env: the ShapeEnv that holds all symbols; sizes are never merged only because they happen to be equal.
        sources: node and axis from which a symbol's value is read when the graph runs.
        data_dependent: symbols that are not the size of an argument.
        internal: positions in ``env.guards`` of guards that torch's own code asked for.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.env = ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self.sources: dict[sympy.Symbol, tuple[fx.Node, int]] = {}
        self.data_dependent: set[sympy.Symbol] = set()
        self.internal: set[int] = set()
        self.exact = False
        self._graph = graph
        self._of_arguments: dict[sympy.Symbol, tuple[SymInt, int]] = {}
        self._nodes: dict[sympy.Expr, fx.Node] = {}

    def symbol(self, size: int, name: str) -> SymInt | int:
        """A size that differs between calls. Sizes 0 and 1 stay numbers: they change how torch broadcasts."""
        if size < 2:
            return size
        source = ConstantSource(name)
        expr = self.env.create_symbol(size, source, DimDynamic.DYNAMIC, None, positive=True)
        symint = self.env.create_symintnode(expr, hint=size, source=source)
        self._of_arguments[expr] = symint, size
        return symint

    def data_dependent_symbol(self, size: int, name: str, exact: bool = False) -> SymInt:
        """A size known only when the graph runs. Its value in the example is a hint, never an assumption.

        Without ``exact``, 0 and 1 are taken for a generic size, since torch would treat them as special cases.
        """
        hint = size if size > 1 or exact or self.exact else GENERIC_SIZE
        source = ConstantSource(name)
        expr = self.env.create_unspecified_symbol(hint, source, DimDynamic.DYNAMIC)
        symint = self.env.create_symintnode(expr, hint=hint, source=source)
        torch._check(symint >= 0)
        self.internal.add(len(self.env.guards) - 1)
        self.data_dependent.add(expr)
        return symint

    def unite(self) -> None:
        """Take for one the argument sizes that an equation ties and that are equal in the example.

        Torch solves ``a = b`` itself, but not ``2 a = b + c``, as of users and of two columns of items in one: then it
        cannot tell that shapes computed from either are equal. A call that fulfils the equation with different sizes
        gets a capture of its own.
        """
        for guard in list(self.env.guards):
            equation = self.env.simplify(guard.expr)
            tied = [self._of_arguments[s] for s in sorted(equation.free_symbols, key=str) if s in self._of_arguments]
            if not isinstance(equation, sympy.Eq) or len(tied) < len(equation.free_symbols):
                continue
            first = {size: symint for symint, size in reversed(tied)}
            if equation.subs({symint.node.expr: first[size].node.expr for symint, size in tied}) is sympy.true:
                for symint, size in tied:
                    torch._check(symint == first[size])

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Let the symbols in the shape of a result that have no source yet be read from ``node``."""
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, SymInt) and size.node.expr.is_Symbol:
                self.sources.setdefault(size.node.expr, (node, axis))

    def conditions(self, first: int) -> list[sympy.Basic]:
        """What must hold of the symbols: the ShapeEnv's guards from position ``first`` on.

        Torch's own questions whether a data-dependent size is one of the special cases 0 and 1 are left out: what it
        does for all other sizes is right for these two as well.
        """
        found = {}
        for position, guard in enumerate(self.env.guards[first:], first):
            generic = dict.fromkeys(guard.expr.free_symbols, GENERIC_SIZE)
            special = position in self.internal and len(generic) == 1 and guard.expr.subs(generic) is sympy.true
            if not (special and self.depends_on_data(guard.expr)):
                found[guard.expr] = None
        return list(found)

    def depends_on_data(self, expr: sympy.Basic) -> bool:
        """Whether an expression holds a symbol that is not the size of an argument."""
        return not self.data_dependent.isdisjoint(expr.free_symbols)

    def node(self, size: SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """The number or graph node that computes a symbolic number."""
        return self._expr(self.env.simplify(size.node.expr))

    def new_node(self, size: SymInt | int) -> fx.Node | int:
        """The number, or new nodes at the graph's insertion point that compute it."""
        if isinstance(size, int):
            return size
        known, self._nodes = self._nodes, {}
        try:
            return self.node(size)
        finally:
            self._nodes = known

    def _expr(self, expr: sympy.Expr) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_number:
            return float(expr)
        if expr not in self._nodes:
            tracer = _SizeTracer(self._graph)
            env = {s: fx.Proxy(self.symbol_node(s), tracer) for s in expr.free_symbols}
            result = sympy_interp(OptimizedPythonReferenceAnalysis, env, expr)
            self._nodes[expr] = result.node if isinstance(result, fx.Proxy) else result
        return self._nodes[expr]

    def symbol_node(self, symbol: sympy.Symbol) -> fx.Node:
        """The node that reads a symbol's value.

        Raises:
            CaptureError: nothing has that size.
        """
        if symbol not in self._nodes:
            if symbol not in self.sources:
                raise CaptureError(f"size {symbol} has no tensor from which it could be read")
            node, axis = self.sources[symbol]
            size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
            size.meta["val"] = node.meta["val"].shape[axis]
            self._nodes[symbol] = size
        return self._nodes[symbol]


class _SizeTracer(fx.proxy.GraphAppendingTracer):
    """Appends size arithmetic to a graph, each node with its symbolic value."""

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, *rest, **options)
        node.meta["val"] = target(
            *fx.map_arg(args, lambda n: n.meta["val"]), **fx.map_arg(kwargs, lambda n: n.meta["val"])
        )
        return node


def is_size(node: fx.Node) -> bool:
    """Whether a node is a size or size arithmetic."""
    return isinstance(node.meta.get("val"), (int, float, SymInt, SymFloat, SymBool))


def size_in(graph: fx.Graph, symbol: sympy.Symbol) -> fx.Node:
    """A new node of a recorded graph that reads a symbol from the first tensor that has it as a size.

    Raises:
        CaptureError: no tensor has it.
    """
    for node in graph.nodes:
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(size, SymInt) and size.node._expr == symbol:  # expr would be what torch has put in its place
                with graph.inserting_after(node):
                    return graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
    raise CaptureError(f"size {symbol} has no tensor from which it could be read")
