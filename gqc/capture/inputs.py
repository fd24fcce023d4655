"""Reads the arguments of a call: a hashable key of everything static, and the flat list of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from gqc.capture.graphs import GraphAdapter, adapter_of
from gqc.errors import InputError

_CONSTANTS = frozenset({int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, type(Ellipsis)})
_TENSORS = (Tensor, torch.nn.Parameter)


class UncapturedInput(InputError):
    """An argument that a model may well take but that this version does not capture: the call can run eagerly."""


@dataclass
class Call:
    """One call, taken apart.

    Attributes:
        key: equal for calls that differ only in tensors (values and sizes) and graphs of one schema.
        flat: the tensors, contiguous, in placeholder order.
        strided: the tensors of ``flat`` that had to be copied to be contiguous, as the user passed them.
        graphs: the graph objects, in the order of their appearance.
        device: where the call computes, if not on the CPU.
    """

    key: Hashable
    flat: list[Tensor]
    graphs: list[Any]
    strided: dict[int, Tensor]
    device: torch.device | None = None

    @property
    def moves_graphs(self) -> bool:
        """Whether a graph lies elsewhere than the call computes, so that the call cannot run eagerly."""
        return self.device is not None and any(getattr(g, "device", self.device) != self.device for g in self.graphs)

    def argument(self, position: int) -> Tensor:
        """Tensor ``position`` of ``flat`` as the user passed it."""
        return self.strided.get(position, self.flat[position])


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None = None) -> Call:
    """Take the arguments of a call apart in one pass.

    Args:
        args, kwargs: the call.
        device: where it computes, if not on the CPU (:func:`gqc.capture.placement.device_of_call`); the tensors of
            graphs on the CPU are copied there.

    Raises:
        UncapturedInput: an argument cannot be captured in this version (sparse tensor, unknown object).
    """
    key: list[Any] = []
    call = Call((), [], [], {}, device)
    for i, arg in enumerate(args):
        _read(arg, key, call, i)
    for name, arg in kwargs.items():
        key.append(name)
        _read(arg, key, call, name)
    call.key = tuple(key)
    return call


def _read(obj: Any, key: list[Any], call: Call, where: int | str) -> None:
    kind = type(obj)
    if kind in _TENSORS:
        if obj.layout is not torch.strided:
            raise UncapturedInput(
                f"argument {where!r}: a {obj.layout} tensor is not captured in this version; "
                "pass features dense, and a graph as edge_index [2, E] (and edge weights [E])"
            )
        key.append((obj.dtype, obj.dim(), obj.device, obj.requires_grad))
        if obj.is_contiguous():
            call.flat.append(obj)
        else:
            call.strided[len(call.flat)] = obj
            call.flat.append(obj.contiguous())
    elif kind in _CONSTANTS:
        key.append((kind, obj))
    elif kind is dict:
        key.append((dict, *obj))
        for item in obj.values():
            _read(item, key, call, where)
    elif kind is tuple or kind is list:
        key.append((kind, len(obj)))
        for item in obj:
            _read(item, key, call, where)
    else:
        _read_object(obj, key, call, where)


def _read_object(obj: Any, key: list[Any], call: Call, where: int | str) -> None:
    if isinstance(obj, Tensor):
        raise UncapturedInput(
            f"argument {where!r}: tensors of type {type(obj).__name__} are not captured in this version; "
            "pass a plain tensor (for a graph: edge_index [2, E]) instead"
        )
    adapter = adapter_of(obj)
    if adapter is not None:
        tensors = adapter.tensors(obj, call.device)
        key.append((type(obj), adapter.schema(obj)))
        for tensor in tensors.values():
            _read(tensor, key, call, where)
        call.graphs.append(obj)
        return
    if type(obj) in pytree.SUPPORTED_NODES:
        items, context = pytree.SUPPORTED_NODES[type(obj)].flatten_fn(obj)
        key.append((type(obj), _hashable(context), len(items)))
        for item in items:
            _read(item, key, call, where)
        return
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        key.append((type(obj), len(obj)))
        for item in obj:
            _read(item, key, call, where)
        return
    if isinstance(obj, (torch.nn.Module, type)) or callable(obj):
        key.append((type(obj), obj))
        return
    try:
        hash(obj)
    except TypeError:
        pass
    else:
        if type(obj).__hash__ is not object.__hash__:
            key.append((type(obj), obj))
            return
    hint = "; register it with torch.utils._pytree" if is_dataclass(obj) else ""
    raise UncapturedInput(f"argument {where!r}: objects of type {type(obj).__qualname__} are not captured{hint}")


def argument_names(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
    """What forward's signature calls the tensors of a call, by identity; ``"feats_user"`` for an item of a dict."""
    names: dict[int, str] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            names.setdefault(id(value), "".join(c if c.isalnum() else "_" for c in name))
        elif type(value) is dict:
            for key, item in value.items():
                collect(f"{name}_{key}", item)
        elif type(value) in (tuple, list):
            for position, item in enumerate(value):
                collect(f"{name}_{position}", item)

    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # what forward does not accept, or has no signature
        return names
    for name, value in bound.arguments.items():
        collect(name, value)
    return names


def _hashable(context: Any) -> Hashable:
    try:
        hash(context)
    except TypeError:
        return repr(context)
    return context


@dataclass
class GraphArgument:
    """A graph among the arguments: its adapter and the positions of its tensors in the flat list."""

    adapter: GraphAdapter
    schema: Hashable
    names: list[str]
    first: int


@dataclass
class InputPlan:
    """How the arguments of a captured call become its placeholders."""

    key: Hashable
    device: torch.device | None = None
    graphs: list[GraphArgument] = field(default_factory=list)

    @staticmethod
    def call_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """The static part of a call; see :func:`read_call`, which gives key and tensors in one pass."""
        return read_call(args, kwargs).key

    @staticmethod
    def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors of a call in placeholder order."""
        return read_call(args, kwargs).flat


def substitute(
    obj: Any,
    tensor: Callable[[Any], Any],
    graph: Callable[[Any], Any],
    other: Callable[[Any], Any] = lambda x: x,
) -> Any:
    """A copy of an argument with its tensors and graphs replaced, in the order of :func:`read_call`."""

    def copy(x: Any) -> Any:
        if isinstance(x, Tensor):
            return tensor(x)
        if type(x) is dict:
            return {k: copy(v) for k, v in x.items()}
        if type(x) in (tuple, list):
            return type(x)(map(copy, x))
        if adapter_of(x) is not None:
            return graph(x)
        if type(x) in pytree.SUPPORTED_NODES:
            node = pytree.SUPPORTED_NODES[type(x)]
            items, context = node.flatten_fn(x)
            return node.unflatten_fn([copy(v) for v in items], context)
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(copy, x))
        return other(x)

    return copy(obj)
