"""How a graph library plugs into the capture.

A graph object is an argument that is neither a tensor nor a constant. Its adapter splits it into a static schema (part
of the key of a compiled variant) and named tensors (placeholders of the captured graph), and gives the object that
stands in for it while the model's Python runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import SymInt, Tensor

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer

Size = int | SymInt


class GraphAdapter(Protocol):
    """One graph library. Methods without a tracer run at every call of the compiled model, so they must be cheap."""

    def matches(self, obj: object) -> bool:
        """Whether ``obj`` is a graph of this library."""
        ...

    def schema(self, graph: Any) -> Hashable:
        """All that a capture depends on beside tensors: relations, index type, is_block, column names.

        Raises:
            InputError: the graph cannot be used (wrong device, unsupported kind).
        """
        ...

    def tensors(self, graph: Any, device: torch.device | None = None) -> dict[str, Tensor]:
        """The graph's real tensors by name, in an order that depends on the schema only.

        Args:
            graph: the graph.
            device: where the call computes, if not on the CPU. An adapter whose library may be unable to bring a
                graph there gives copies on this device.
        """
        ...

    def dynamic_axes(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """The axes of a tensor of :meth:`tensors` whose size may differ between calls."""
        ...

    def ties(self, schema: Hashable, tensors: dict[str, Tensor]) -> Iterable[tuple[Size, Size]]:
        """Pairs of sizes of (fake) ``tensors`` that are equal in every graph of this schema.

        They hold by construction of the graph and are not checked again at a call.
        """
        ...

    def stand_in(self, schema: Hashable, tensors: dict[str, Tensor], tracer: Tracer) -> Any:
        """The object that the model gets instead of the graph; ``tensors`` are fake tensors that the tracer records."""
        ...

    def effects(self, stand_in: Any) -> dict[str, Tensor | None]:
        """What the model has written so far to the graph that its caller can see; ``None`` marks a removed column."""
        ...

    def write_back(self, graph: Any, values: dict[str, Tensor | None]) -> None:
        """Apply :meth:`effects`, now real tensors, to the real graph, on its device."""
        ...

    def local(self, graph: Any) -> Any:
        """A shallow copy of the real graph: writing to it does not change ``graph``. Given to eager islands."""
        ...

    def patches(self, tracer: Tracer) -> AbstractContextManager[None]:
        """Changes to the library that are in force while a model is traced."""
        ...


_ADAPTER_MODULES = {"dgl": "gqc.capture.dgl", "torch_geometric": "gqc.capture.pyg"}
_loaded: list[GraphAdapter] = []
_seen: set[str] = set()


def adapters() -> list[GraphAdapter]:
    """Adapters of the graph libraries that the program has imported; each module holds its adapter as ``ADAPTER``."""
    if len(_seen) < len(_ADAPTER_MODULES):
        for library, module in _ADAPTER_MODULES.items():
            if library in sys.modules and library not in _seen:
                adapter = importlib.import_module(module).ADAPTER
                if adapter not in _loaded:  # another thread may have come first
                    _loaded.append(adapter)
                _seen.add(library)
    return _loaded


def adapter_of(obj: object) -> GraphAdapter | None:
    """The adapter of a graph object, ``None`` if ``obj`` is no graph."""
    return next((adapter for adapter in adapters() if adapter.matches(obj)), None)
