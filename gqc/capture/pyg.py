"""PyG's ``Data``, ``HeteroData`` and their batches as arguments: a model may take ``data`` and read ``data.x``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data.batch import Batch
from torch_geometric.data.data import BaseData

from gqc.capture.graphs import Size
from gqc.capture.sizes import dynamic_axes

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer

_CONSTANTS = (int, float, bool, str, type(None))
_BEFORE = "_gqc_before"


@dataclass(frozen=True)
class DataSchema:
    """All of a ``Data`` object but its tensors.

    Attributes:
        kind: its class.
        num_graphs: graphs in a batch, ``None`` if it is no batch.
        tensors: names of its tensors.
        constants: its numbers and strings, by name. Anything else (lists of strings) is hidden from a captured model.
    """

    kind: type[BaseData]
    num_graphs: int | None
    tensors: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]


class DataAdapter:
    """Implements :class:`gqc.capture.graphs.GraphAdapter`.

    Tensors are named by attribute, in a ``HeteroData`` behind its type: ``x``, ``paper|x``, ``a|to|b|edge_index``.
    """

    def matches(self, obj: object) -> bool:
        return isinstance(obj, BaseData)

    def schema(self, graph: BaseData) -> DataSchema:
        entries = list(_entries(graph))
        return DataSchema(
            kind=type(graph),
            num_graphs=graph.num_graphs if isinstance(graph, Batch) else None,
            tensors=tuple(name for name, value in entries if isinstance(value, Tensor)),
            constants=tuple((name, value) for name, value in entries if isinstance(value, _CONSTANTS)),
        )

    def tensors(self, graph: BaseData, device: torch.device | None = None) -> dict[str, Tensor]:
        return {name: value for name, value in _entries(graph) if isinstance(value, Tensor)}

    def dynamic_axes(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        return dynamic_axes(tensor)

    def ties(self, schema: DataSchema, tensors: dict[str, Tensor]) -> Iterable[tuple[Size, Size]]:
        return ()  # PyG does not require that x and y have as many rows as there are nodes

    def stand_in(self, schema: DataSchema, tensors: dict[str, Tensor], tracer: Tracer) -> BaseData:
        data = schema.kind()
        for name, value in (*tensors.items(), *schema.constants):
            _set(data, name, value)
        if schema.num_graphs is not None:
            vars(data)["_num_graphs"] = schema.num_graphs
        vars(data)[_BEFORE] = self.tensors(data)
        return data

    def effects(self, stand_in: BaseData) -> dict[str, Tensor | None]:
        before, after = vars(stand_in)[_BEFORE], self.tensors(stand_in)
        removed: dict[str, Tensor | None] = {name: None for name in before if name not in after}
        return removed | {name: value for name, value in after.items() if value is not before.get(name)}

    def write_back(self, graph: BaseData, values: dict[str, Tensor | None]) -> None:
        for name, value in values.items():
            _set(graph, name, value)

    def local(self, graph: BaseData) -> BaseData:
        return copy(graph)

    def patches(self, tracer: Tracer) -> AbstractContextManager[None]:
        return nullcontext()


def _entries(data: BaseData) -> Iterator[tuple[str, Any]]:
    for store in data.stores:
        key = store._key
        prefix = "" if key is None else f"{key}|" if isinstance(key, str) else "|".join((*key, ""))
        for name, value in store.items():
            yield prefix + name, value


def _set(data: BaseData, name: str, value: Any) -> None:
    *key, attribute = name.split("|")
    store = data if not key else data[key[0]] if len(key) == 1 else data[tuple(key)]
    if value is None and attribute in store:
        del store[attribute]
    else:
        store[attribute] = value


ADAPTER = DataAdapter()
