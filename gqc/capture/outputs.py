"""Puts the flat results of a captured graph back into the structure that the model returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn

from gqc.capture.inputs import InputPlan, read_call


@dataclass(frozen=True)
class Result:
    """A tensor that the graph computes: position in its flat output."""

    position: int


@dataclass(frozen=True)
class Size(Result):
    """A number that the graph computes, carried as the size of a tensor without elements."""


@dataclass(frozen=True)
class Argument:
    """An argument that the model returns as it got it: position among the call's tensors."""

    position: int


@dataclass(frozen=True)
class GraphBack:
    """A graph argument that the model returns."""

    position: int


@dataclass(frozen=True)
class Attribute:
    """A parameter or buffer that the model returns."""

    module: nn.Module
    name: str


@dataclass(frozen=True)
class Constant:
    """A value that is the same at every call of this variant."""

    value: Any


@dataclass
class GraphWrites:
    """Columns that the model writes to graph argument ``graph``; ``None`` marks a removed column."""

    graph: int
    columns: dict[str, Result | Argument | None]


@dataclass
class OutputPlan:
    """What becomes of the graph's flat output.

    Attributes:
        leaves: one source a leaf of ``spec``.
        spec: the structure that the model returns.
        graph_writes: side effects on graph arguments.
        attribute_writes: tensors that the model stores in module attributes.
    """

    leaves: list[Any]
    spec: pytree.TreeSpec
    graph_writes: list[GraphWrites] = field(default_factory=list)
    attribute_writes: list[tuple[nn.Module, str, Any]] = field(default_factory=list)
    inputs: InputPlan | None = None

    def __post_init__(self) -> None:
        self._single = self.leaves[0].position if self._is_one_tensor() else None
        sources = [*self.leaves, *(source for *_, source in self.attribute_writes)]
        sources += [source for writes in self.graph_writes for source in writes.columns.values()]
        self._needs_call = bool(self.graph_writes) or any(isinstance(s, (Argument, GraphBack)) for s in sources)

    def _is_one_tensor(self) -> bool:
        return (
            self.spec.is_leaf() and type(self.leaves[0]) is Result and not (self.graph_writes or self.attribute_writes)
        )

    def unflatten(self, flat: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's return value; also applies its side effects to graphs and modules."""
        if self._single is not None:
            return flat[self._single]
        call = read_call(args, kwargs, self.inputs.device) if self._needs_call else None

        def value(source: Any) -> Any:
            if type(source) is Result:
                return flat[source.position]
            if type(source) is Size:
                return flat[source.position].shape[0]
            if type(source) is Argument:
                return call.argument(source.position)
            if type(source) is GraphBack:
                return call.graphs[source.position]
            if type(source) is Attribute:
                return getattr(source.module, source.name)
            return source.value

        for writes in self.graph_writes:
            columns = {name: None if s is None else value(s) for name, s in writes.columns.items()}
            self.inputs.graphs[writes.graph].adapter.write_back(call.graphs[writes.graph], columns)
        for module, name, source in self.attribute_writes:
            setattr(module, name, value(source))
        return pytree.tree_unflatten([value(source) for source in self.leaves], self.spec)
