"""Attributes of modules: what a capture has read in them, and what a run changes in them."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gqc.capture.example import real_tensors

REGISTRIES = ("_parameters", "_buffers", "_modules")
_CONSTANTS = (int, float, bool, str, type(None))
_CONTAINERS = (dict, list, tuple, set, deque)
_MUTABLE = (dict, list, set, deque)


@dataclass(frozen=True, eq=False)
class _Same:
    """An object that is compared by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def contents(value: Any) -> Any:
    """What a value is, for a later comparison: constants by type and value, containers by what they hold, all else by
    identity."""
    if isinstance(value, _CONSTANTS):
        return type(value), value
    if isinstance(value, dict):
        return type(value), tuple((key, contents(item)) for key, item in value.items())
    if isinstance(value, set):
        return type(value), frozenset(map(contents, value))
    if isinstance(value, _CONTAINERS):
        return type(value), tuple(map(contents, value))
    return _Same(value)


@dataclass(frozen=True)
class AttributeGuard:
    """An attribute that the traced Python has read: the capture holds while it is the same."""

    module: str
    name: str
    fields: dict[str, Any] = field(repr=False)
    value: Any
    contents: Any = field(repr=False)

    @classmethod
    def of(cls, module: str, name: str, fields: dict[str, Any]) -> AttributeGuard:
        """Guard what the attribute holds now."""
        value = fields[name]
        return cls(module, name, fields, reprlib.repr(value) if isinstance(value, _MUTABLE) else value, contents(value))

    def holds(self) -> bool:
        value = self.fields.get(self.name, self)
        return value is self.value or contents(value) == self.contents

    def __str__(self) -> str:
        return f"attribute '{self.name}' of module '{self.module}' was {self.value!r}"


@dataclass(frozen=True)
class MissingGuard:
    """An attribute that the traced Python has looked for and that the module itself did not have."""

    module: str
    name: str
    fields: dict[str, Any] = field(repr=False)

    def holds(self) -> bool:
        return self.name not in self.fields and not any(self.name in self.fields[table] for table in REGISTRIES)

    def __str__(self) -> str:
        return f"module '{self.module}' had no attribute '{self.name}' of its own"


@dataclass(frozen=True)
class TieGuard:
    """Two names of one parameter or buffer, which the captured graph knows by the first."""

    names: tuple[str, str]
    places: tuple[tuple[dict[str, Any], str], tuple[dict[str, Any], str]] = field(repr=False)

    def holds(self) -> bool:
        (first, a), (second, b) = self.places
        return first.get(a) is second.get(b)

    def __str__(self) -> str:
        return f"'{self.names[0]}' and '{self.names[1]}' were one tensor"


def ties(model: nn.Module) -> list[TieGuard]:
    """The parameters and buffers that stand in several places."""
    first: dict[int, tuple[str, tuple[dict[str, Any], str]]] = {}
    found = []
    for path, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for leaf, tensor in table.items():
                if tensor is not None:
                    name, place = f"{path}.{leaf}".lstrip("."), (table, leaf)
                    known, known_place = first.setdefault(id(tensor), (name, place))
                    if known != name:
                        found.append(TieGuard((known, name), (known_place, place)))
    return found


class Snapshot:
    """What modules hold: attributes, and what is in the lists, dicts and sets among them (their registries included).

    Args:
        modules: by path; TorchScript's, which keep all in C++, are left out.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        modules = {path: module for path, module in modules.items() if not isinstance(module, torch.jit.ScriptModule)}
        self.modules = modules
        self.fields = {path: dict(vars(module)) for path, module in modules.items()}
        self._tables = [vars(module) for module in modules.values()]
        self._containers: dict[int, tuple[str, str, Any, Any, Any]] = {}
        for path, fields in self.fields.items():
            for name, value in fields.items():
                self._add(path, name, value)

    def _add(self, path: str, name: str, value: Any) -> None:
        if not isinstance(value, _CONTAINERS) or id(value) in self._containers:
            return
        if isinstance(value, _MUTABLE):
            items = dict(value) if isinstance(value, dict) else list(value)
            self._containers[id(value)] = path, name, value, items, contents(value)
        for item in value.values() if isinstance(value, dict) else value:
            self._add(path, name, item)

    def registered(self, path: str, registry: str) -> dict[str, Any]:
        """What stood in a registry (``_parameters``, ``_buffers`` or ``_modules``) of a module."""
        return self._containers[id(self.fields[path][registry])][3]

    def changed(self) -> Iterator[tuple[str, str]]:
        """Module path and attribute of each container that holds something else now."""
        for path, name, value, _, before in self._containers.values():
            if contents(value) != before:
                yield path, name

    def restore(self) -> None:
        """Put everything back."""
        for table, fields in zip(self._tables, self.fields.values(), strict=True):
            _refill(table, fields)
        for _, _, value, items, _ in self._containers.values():
            _refill(value, items)


def _refill(container: Any, items: Any) -> None:
    """Give a container other contents. Nothing that stays is ever missing, since other threads may read it."""
    if isinstance(container, dict):
        for name in [name for name in container if name not in items]:
            del container[name]
        container.update(items)
    elif isinstance(container, list):
        container[:] = items
    elif contents(container) != contents(type(container)(items)):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(items)


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Run a model eagerly, then give its attributes, parameters and buffers the values that they had before."""
    before = [(x, x.detach().clone()) for x in _state(model)]
    snapshot = Snapshot(dict(model.named_modules()))
    try:
        yield
    finally:
        snapshot.restore()
        with real_tensors(), torch.no_grad():
            for tensor, content in before:
                if not torch.equal(tensor, content):  # a copy would look like a change to autograd
                    tensor.copy_(content)


def _state(model: nn.Module) -> Iterable[Tensor]:
    with real_tensors():
        yield from model.parameters()
        yield from model.buffers()
