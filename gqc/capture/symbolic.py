"""Python's built-ins that turn a symbolic size into the number that it has in the example."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor, nn

_PYG_UTILITIES = "torch_geometric.utils"
_MISSING = object()


class _IntOrSize(type):
    def __instancecheck__(cls, obj: object) -> bool:
        return isinstance(obj, (int, SymInt))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, (int, SymInt))


class _SymbolicInt(metaclass=_IntOrSize):
    """Stands for ``int`` in the modules that a traced model is written in: it leaves sizes symbolic."""

    def __new__(cls, value: Any = 0, *args: Any) -> Any:
        if isinstance(value, Tensor):
            value = value.item()
        if isinstance(value, (SymInt, SymFloat)):
            return torch.sym_int(value)
        return int(value, *args)


@contextmanager
def symbolic_numbers(model: nn.Module) -> Iterator[None]:
    """Let ``len(x)`` everywhere, and ``int(x)`` in the code of ``model``, keep sizes symbolic.

    ``len`` of an object of a Python class (a feature frame, a batch of nodes) is what its ``__len__`` returns.
    """
    original_len = builtins.len

    def symbolic_len(obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.dim():
            return obj.shape[0]
        method = getattr(type(obj), "__len__", None)
        return method(obj) if isinstance(method, types.FunctionType) else original_len(obj)

    scopes = _scopes(model)
    shadowed = [scope.get("int", _MISSING) for scope in scopes]
    builtins.len = symbolic_len
    for scope in scopes:
        scope["int"] = _SymbolicInt
    try:
        yield
    finally:
        builtins.len = original_len
        for scope, value in zip(scopes, shadowed, strict=True):
            if value is _MISSING:
                del scope["int"]
            else:
                scope["int"] = value


def _scopes(model: nn.Module) -> list[dict[str, Any]]:
    """The global names of the Python modules that define the model's classes (and of PyG's utilities)."""
    names = {type(module).__module__ for module in model.modules()}
    names |= {name for name in sys.modules if name.startswith(_PYG_UTILITIES)}
    return [vars(sys.modules[name]) for name in sorted(names) if name in sys.modules and not name.startswith("torch.")]
