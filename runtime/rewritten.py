"""What a rewritten model (``gqc.rewrite``) calls beside ``torch.ops.gqc``: checks of a call, and how its halves run.

A compiled model answers a call of another kind by capturing again. A rewritten one cannot, so it refuses the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.errors import InputError
from gqc.runtime.memory import ByIdentity as remembered
from gqc.runtime.relation import num_dst, num_edges, num_src, reverse
from gqc.runtime.seed_apart import SeedApart
from gqc.runtime.structure import relations

__all__ = [
    "DataKind",
    "GraphKind",
    "SeedApart",
    "below_autograd",
    "check",
    "check_length",
    "check_mode",
    "check_state",
    "check_value",
    "num_dst",
    "num_edges",
    "num_src",
    "relations",
    "remembered",
    "reverse",
    "tensor_argument",
    "unset",
]

MODES = {(True, True): "train", (False, False): "eval", (False, True): "eval-grad", (True, False): "train-no-grad"}
"""Name of a way to call a model, by its training flag and grad mode."""

MARK = "written down by gqc"
"""Stands in the first line of every rewritten module."""

_CALLS = {
    "train": "model.train() with gradients",
    "eval": "model.eval() under torch.no_grad()",
    "eval-grad": "model.eval() with gradients",
    "train-no-grad": "model.train() under torch.no_grad()",
}
_AGAIN = "rewrite the model again with an example of this kind"


def is_rewritten(model: nn.Module) -> bool:
    """Whether the class of a model is one that ``gqc.rewrite`` has written down."""
    module = getattr(type(model).forward, "__globals__", {})
    return MARK in (module.get("__doc__") or "").partition("\n")[0]


@contextmanager
def below_autograd() -> Iterator[None]:
    """Run kernels without autograd and autocast looking at each: both are part of what was written down."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        yield


def check(holds: bool, what: str) -> None:
    """Refuse a call for which something does not hold that was true of the example.

    Raises:
        InputError: naming it.
    """
    if not holds:
        raise InputError(f"the model was rewritten for calls where {what}: {_AGAIN}")


def check_value(name: str, value: object, expected: object) -> None:
    """Refuse another value of an argument that is written into the code as a constant.

    Raises:
        InputError: naming both.
    """
    both_nan = value != value and expected != expected
    if type(value) is not type(expected) or not (value == expected or both_nan):
        raise InputError(f"{name} is {value!r}, and the model was rewritten for {expected!r}: {_AGAIN}")


def check_length(name: str, value: Any, kind: type, length: int) -> None:
    """Refuse a list or tuple of another length.

    Raises:
        InputError: naming both.
    """
    if type(value) is not kind or len(value) != length:
        found = f"{type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
        raise InputError(
            f"{name} is a {found}, and the model was rewritten for a {kind.__name__} of {length}: {_AGAIN}"
        )


def check_mode(model: nn.Module, modes: Sequence[str], autocast: torch.dtype | None, default: torch.dtype) -> str:
    """The way in which the model is called, one of ``modes``.

    Args:
        model: its training flag is read.
        modes: the ways that were written down, values of :data:`MODES`.
        autocast: dtype of autocast in the example, ``None`` where it was off.
        default: torch's default dtype then.

    Raises:
        InputError: the model is called in another way.
    """
    mode = MODES[model.training, torch.is_grad_enabled()]
    if mode not in modes:
        known = " and ".join(_CALLS[m] for m in modes)
        raise InputError(
            f"{type(model).__name__} is called as {_CALLS[mode]} and was rewritten for {known} only: "
            f"call it so, or rewrite it with mode {mode!r} too"
        )
    now = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    if now is not autocast:
        states = ["off" if dtype is None else f"on ({dtype})" for dtype in (now, autocast)]
        raise InputError(f"autocast is {states[0]}, and the model was rewritten with autocast {states[1]}: {_AGAIN}")
    check_value("torch.get_default_dtype()", torch.get_default_dtype(), default)
    return mode


def check_state(
    model: nn.Module, dtype: torch.dtype, others: Mapping[str, torch.dtype] | None = None, frozen: Sequence[str] = ()
) -> None:
    """Refuse floating-point parameters and buffers of other types than in the example.

    Args:
        model: has the parameters and buffers.
        dtype: what they were.
        others: those that had another type, by dotted name.
        frozen: names of those whose gradient is not computed.

    Raises:
        InputError: naming the first that differs.
    """
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            expected = others.get(name, dtype) if others else dtype
            if (tensor.is_floating_point() and tensor.dtype is not expected) or not tensor.is_cpu:
                raise InputError(
                    f"{name} is {tensor.dtype} on {tensor.device}, and the model was rewritten for {expected} on the "
                    f"CPU: {_AGAIN}"
                )
            if tensor.requires_grad and name in frozen:
                raise InputError(f"{name} requires a gradient, and was frozen when the model was rewritten: {_AGAIN}")


def tensor_argument(
    name: str, value: Any, dtype: torch.dtype, shape: Sequence[int | None], requires_grad: bool = False
) -> Tensor:
    """An argument that must be a dense tensor; the result is contiguous.

    Args:
        name: of the argument, for the error.
        value: the argument.
        dtype: its dtype.
        shape: its size along each axis, ``None`` where any size of 2 or more will do.
        requires_grad: whether its gradient is computed.

    Raises:
        InputError: naming what is wrong.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.is_cpu:
        found = (
            f"a {value.layout} tensor on {value.device}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        )
        raise InputError(f"{name} is {found}, and the model was rewritten for a dense tensor on the CPU: {_AGAIN}")
    if value.dtype is not dtype:
        raise InputError(f"{name} is of {value.dtype}, and the model was rewritten for {dtype}: convert it first")
    fits = value.dim() == len(shape) and all(
        size >= 2 if want is None else size == want for size, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("2 or more" if size is None else str(size) for size in shape)
        raise InputError(f"{name} has shape {list(value.shape)}, and the model was rewritten for [{wanted}]: {_AGAIN}")
    if value.requires_grad and not requires_grad:
        raise InputError(f"{name} requires a gradient, and the model was rewritten without one: {_AGAIN}, or detach it")
    return value.contiguous()


def unset(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a parameter or buffer holds before ``load_state_dict``: NaN, so that forgetting it cannot go unnoticed."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.full(size, float("nan"), dtype=dtype)
    return torch.zeros(size, dtype=dtype)


@dataclass(frozen=True)
class GraphKind:
    """All that a rewritten model takes for granted of a ``DGLGraph`` beside its size.

    Attributes:
        node_types, edge_types: in DGL's order.
        node_columns, edge_columns: names of the features of each type.
        block: whether it is a block of a sampler.
        batched: whether it is made of several graphs.
        index: its index type.
    """

    node_types: tuple[str, ...]
    edge_types: tuple[tuple[str, str, str], ...]
    node_columns: tuple[tuple[str, ...], ...]
    edge_columns: tuple[tuple[str, ...], ...]
    block: bool = False
    batched: bool = False
    index: torch.dtype = torch.int64

    def check(self, name: str, graph: Any) -> None:
        """Refuse a graph of another kind.

        Raises:
            InputError: naming what is different.
        """
        if not hasattr(graph, "_node_frames"):
            raise InputError(f"{name} is a {type(graph).__name__}, and the model was rewritten for a DGLGraph")
        found = GraphKind(
            tuple(graph._ntypes),
            tuple(graph._canonical_etypes),
            tuple(map(_columns, graph._node_frames)),
            tuple(map(_columns, graph._edge_frames)),
            bool(graph.is_block),
            graph._batch_num_nodes is not None,
            graph.idtype,
        )
        for what, mine, theirs in zip(vars(self), vars(self).values(), vars(found).values(), strict=True):
            if mine != theirs:
                shown = what.replace("_", " ")
                raise InputError(f"{name} has {shown} {theirs!r}, and the model was rewritten for {mine!r}: {_AGAIN}")


@dataclass(frozen=True)
class DataKind:
    """All that a rewritten model takes for granted of a PyG ``Data`` object beside the values of its tensors.

    Attributes:
        kind: name of its class.
        tensors: names of its tensors; those of a ``HeteroData`` stand behind their type, as in ``"paper|x"``.
        constants: its numbers and strings.
        num_graphs: graphs in a batch.
    """

    kind: str
    tensors: tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_graphs: int | None = None

    def check(self, name: str, data: Any) -> None:
        """Refuse an object of another kind.

        Raises:
            InputError: naming what is different.
        """
        if type(data).__name__ != self.kind:
            raise InputError(f"{name} is a {type(data).__name__}, and the model was rewritten for a {self.kind}")
        entries = {_prefix(store) + key: value for store in data.stores for key, value in store.items()}
        tensors = tuple(key for key, value in entries.items() if isinstance(value, Tensor))
        if set(tensors) != set(self.tensors):
            raise InputError(f"{name} has tensors {tensors}, and the model was rewritten for {self.tensors}: {_AGAIN}")
        for key, value in self.constants.items():
            check_value(f"{key} of {name}", entries.get(key), value)
        if self.num_graphs is not None:
            check_value(f"num_graphs of {name}", data.num_graphs, self.num_graphs)


def _columns(frame: Any) -> tuple[str, ...]:
    """The columns that hold features; DGL's lazy ones do not."""
    return tuple(name for name, column in frame._columns.items() if type(column).__name__ != "LazyFeature")


def _prefix(store: Any) -> str:
    key = store._key
    return "" if key is None else f"{key}|" if isinstance(key, str) else "|".join((*key, ""))
