"""Names that people can read for the symbolic sizes of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from gqc.dump.relations import NamedRelation
from gqc.passes.nodes import example
from gqc.runtime.relation import CSC_INDPTR, CSR_INDPTR, SRC

NODES, EDGES, OTHER = "N", "E", "D"


class SizeNames:
    """Calls numbers of nodes ``N``, numbers of edges ``E`` and other sizes that vary ``D``, with a number if several.

    Torch's own symbols (``s55``) are hashes that differ from one release to the next.

    Attributes:
        values: each name with its size at the example call; ``None`` for a size that the example does not fix.
    """

    def __init__(self, graph: fx.Graph, relations: Sequence[NamedRelation]) -> None:
        families: dict[sympy.Symbol, str] = {}
        for relation in relations:
            shapes = [n.meta["val"].shape[0] for n in relation.nodes]
            for position, family in ((CSC_INDPTR, NODES), (CSR_INDPTR, NODES), (SRC, EDGES)):
                families |= {s: family for s in _symbols(shapes[position]) if s not in families}
        for node in graph.nodes:
            for size in _sizes(node.meta.get("val")):
                families |= {s: OTHER for s in _symbols(size) if s not in families}
        counts = {family: list(families.values()).count(family) for family in (NODES, EDGES, OTHER)}
        numbers = dict.fromkeys(counts, 0)
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        for symbol, family in families.items():
            name = family if counts[family] == 1 else f"{family}{numbers[family]}"
            numbers[family] += 1
            self._names[symbol] = sympy.Symbol(name, integer=True, positive=True)
        known: dict[sympy.Symbol, int] = {}
        for symbol in families:
            value = _example(graph, symbol, known)
            if value is not None:
                known[symbol] = value
        self.values = {str(name): known.get(symbol) for symbol, name in self._names.items()}

    def __call__(self, size: Any) -> str:
        """A size as text, ``"N + 1"``."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        return str(size) if expression is None else str(expression.xreplace(self._names))

    def shape(self, shape: Iterable[Any]) -> str:
        return f"[{', '.join(map(self, shape))}]"


def _example(graph: fx.Graph, symbol: sympy.Symbol, known: dict[sympy.Symbol, int]) -> int | None:
    """A symbol at the example call, from the first size that is a polynomial of it and of known symbols."""
    for node in graph.nodes:
        for size in _sizes(node.meta.get("val")):
            if symbol not in _symbols(size) or size.node.hint is None:
                continue
            expression = size.node.expr.xreplace(known)
            if expression.free_symbols == {symbol} and expression.is_polynomial(symbol):
                return int(sympy.solve(expression - example(size), symbol)[-1])
    return None


def _symbols(size: Any) -> list[sympy.Symbol]:
    if not isinstance(size, torch.SymInt):
        return []
    return sorted(size.node.expr.free_symbols, key=str)


def _sizes(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    if isinstance(value, list | tuple):
        return [size for item in value for size in _sizes(item)]
    return [value] if isinstance(value, torch.SymInt) else []
