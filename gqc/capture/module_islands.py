"""Submodules that run eagerly inside a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import SymInt, Tensor, nn

from gqc.capture.inputs import GraphArgument, substitute
from gqc.capture.islands import current_graph
from gqc.errors import CaptureError


@dataclass(frozen=True)
class _Slot:
    """Place of operand ``index``."""

    index: int


@dataclass(frozen=True)
class _GraphSlot:
    """Place of graph argument ``index`` of the call, with the columns that the model has written to it before."""

    index: int
    columns: dict[str, _Slot | None]


@dataclass(frozen=True)
class _Constant:
    """A result that is no tensor."""

    value: Any


class ModuleIsland:
    """Calls a module with real tensors and graphs in the places of its recorded arguments.

    Args:
        module: the module; ``run(module, *args, **kwargs)`` calls it.
        args, kwargs: its arguments on fake tensors.
        graphs, stand_ins: the graph arguments of the model and what stands in for them.

    Attributes:
        operands: the tensors and sizes among the arguments; the island is called with their real values.

    Raises:
        CaptureError: an argument is a graph that is not an argument of the model.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[..., Any],
        args: Any,
        kwargs: Any,
        graphs: Sequence[GraphArgument],
        stand_ins: Sequence[Any],
    ) -> None:
        self.operands: list[Tensor | SymInt] = []
        self._module, self._run = module, run
        self._graphs, self._stand_ins = graphs, stand_ins
        self._arguments = substitute((args, kwargs), self._slot, self._graph_slot, self._size_slot)
        self._spec: pytree.TreeSpec | None = None
        self._constants: list[_Constant | None] = []

    def _slot(self, operand: Tensor | SymInt) -> _Slot:
        self.operands.append(operand)
        return _Slot(len(self.operands) - 1)

    def _size_slot(self, argument: Any) -> Any:
        return self._slot(argument) if isinstance(argument, SymInt) else argument

    def _graph_slot(self, graph: Any) -> _GraphSlot:
        index = next((i for i, stand_in in enumerate(self._stand_ins) if stand_in is graph), None)
        if index is None:
            raise CaptureError("a graph that forward itself has made is passed to an eager island")
        effects = self._graphs[index].adapter.effects(graph)
        return _GraphSlot(index, {name: None if x is None else self._slot(x) for name, x in effects.items()})

    def __call__(self, *values: Any) -> list[Tensor]:
        args, kwargs = pytree.tree_map(lambda x: self._fill(x, values), self._arguments)
        leaves, spec = pytree.tree_flatten(self._run(self._module, *args, **kwargs))
        constants = [None if isinstance(x, Tensor) else _Constant(x) for x in leaves]
        if self._spec is None:
            self._spec, self._constants = spec, constants
        elif (spec, constants) != (self._spec, self._constants):
            raise CaptureError("it returned other constants or another structure than when it was captured")
        return [x for x in leaves if isinstance(x, Tensor)]

    def _fill(self, argument: Any, values: tuple[Any, ...]) -> Any:
        if isinstance(argument, _Slot):
            return values[argument.index]
        if isinstance(argument, _GraphSlot):
            adapter = self._graphs[argument.index].adapter
            graph = adapter.local(current_graph(argument.index))
            columns = {name: None if slot is None else values[slot.index] for name, slot in argument.columns.items()}
            adapter.write_back(graph, columns)
            return graph
        return argument

    def result(self, tensors: list[Tensor]) -> Any:
        """What the module returned when it was recorded, with other tensors."""
        remaining = iter(tensors)
        leaves = [next(remaining) if constant is None else constant.value for constant in self._constants]
        return pytree.tree_unflatten(leaves, self._spec)
