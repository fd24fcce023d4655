"""The gathers and scatters of a recorded graph, whichever of torch's functions the model calls for them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.capture.example import Example, storage_key
from gqc.capture.islands import AutocastCall

_ZEROS = ("zeros", "new_zeros", "zeros_like")
_TRAILING = ("view", "reshape", "unsqueeze", "expand", "expand_as", "repeat")
_INDEX_TYPES = (torch.int64, torch.int32)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

SUM, MEAN, MAX, MIN = "sum", "mean", "amax", "amin"


@dataclass(frozen=True)
class Gather:
    """Row ``index[i]`` of ``rows`` for each i.

    Attributes:
        node: its result ``[E, *F]``.
        index: ``[E]``.
    """

    node: fx.Node
    index: fx.Node

    @property
    def rows(self) -> fx.Node:
        """``[N, *F]``, floats; another node once what gave them has been rewritten."""
        return _argument(self.node, 0, "input")


@dataclass(frozen=True)
class Scatter:
    """Row i of ``messages``, reduced into row ``index[i]`` of zeros.

    Attributes:
        node: its result ``[N, *F]``.
        index: ``[E]``.
        reduce: :data:`SUM`, :data:`MEAN`, :data:`MAX` or :data:`MIN`.
    """

    node: fx.Node
    index: fx.Node
    reduce: str

    @property
    def messages(self) -> fx.Node:
        """``[E, *F]``, floats."""
        return _argument(self.node, 3, "src", "source")


def _argument(node: fx.Node, position: int, *names: str) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return next(node.kwargs[name] for name in names if name in node.kwargs)


def name_of(node: fx.Node) -> str:
    """The name of the function that a node calls, the same for ``torch.f``, ``Tensor.f`` and under autocast."""
    target = node.target.fn if isinstance(node.target, AutocastCall) else node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return {"truediv": "div", "true_divide": "div", "multiply": "mul", "divide": "div"}.get(name, name)


def arguments(node: fx.Node, *names: str) -> dict[str, Any] | None:
    """The arguments of a call by these names, in the order of its signature; ``None`` if it has others."""
    if len(node.args) > len(names) or any(name not in names for name in node.kwargs):
        return None
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def operands(node: fx.Node) -> tuple[Any, Any] | None:
    """Both operands of a binary operation without further arguments."""
    given = arguments(node, "input", "other") or {}
    return (given["input"], given["other"]) if len(given) == 2 else None


def readers(node: fx.Node) -> set[fx.Node]:
    """The nodes that read a node's values, not only its shape."""
    return {n for n in node.users if not (name_of(n) == "expand_as" and n.args[0] is not node) and value(n) is not None}


def value(node: object) -> Tensor | None:
    """The fake tensor of a node, ``None`` if it is none."""
    found = node.meta.get("val") if isinstance(node, fx.Node) else None
    return found if isinstance(found, Tensor) else None


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal in every call."""
    return statically_known_true(a == b)


def same_shape(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two shapes are equal in every call."""
    return len(a) == len(b) and all(map(same, a, b))


def is_unchanged(node: fx.Node, after: fx.Node, example: Example) -> bool:
    """Whether nothing writes to a node's memory behind ``after``, which reads it."""
    return all(writer <= after for writer in example.writers.get(storage_key(value(node)), ()))  # type: ignore[arg-type]


def is_float(node: object) -> bool:
    found = value(node)
    return found is not None and found.dtype in _FLOATS


def read_gather(node: fx.Node, example: Example) -> Gather | None:
    """The gather of rows that a node is, if it may as well be done later."""
    name = name_of(node)
    rows = index = None
    if name == "getitem" and len(node.args) == 2:
        rows, index = node.args
    elif name in ("index_select", "gather"):
        given = arguments(node, "input", "dim", "index") or {}
        rows, index = given.get("input"), given.get("index")
        if not is_float(rows) or not isinstance(given.get("dim"), int) or given["dim"] % value(rows).dim() != 0:  # type: ignore[union-attr]
            return None
        if name == "gather":
            wide = value(index)
            if wide is None or not same_shape(wide.shape[1:], value(rows).shape[1:]):  # type: ignore[union-attr]
                return None
            index = edge_index(index)
    if not is_float(rows) or value(rows).dim() == 0 or not is_index(index) or example.is_written(index):  # type: ignore[union-attr,arg-type]
        return None
    fits = is_unchanged(rows, node, example) and not example.is_written(node)  # type: ignore[arg-type]
    return Gather(node, index) if fits else None  # type: ignore[arg-type]


def read_scatter(node: fx.Node, example: Example) -> Scatter | None:
    """The reduction into zeros that a node is."""
    name = name_of(node)
    kind, in_place = name.removesuffix("_"), name.endswith("_")
    given, reduce = None, SUM
    if kind == "scatter_add":
        given = arguments(node, "input", "dim", "index", "src")
    elif kind == "index_add":
        given = arguments(node, "input", "dim", "index", "src", "source")
        if given is not None and "source" in given:
            given["src"] = given.pop("source")
    elif kind == "scatter_reduce":
        given = arguments(node, "input", "dim", "index", "src", "reduce", "include_self")
        reduce = (given or {}).pop("reduce", "")
        with_zero = (given or {}).pop("include_self", True)
        if reduce not in (SUM, MEAN, MAX, MIN) or (with_zero and reduce != SUM):
            return None
    if given is None or given.keys() != {"input", "dim", "index", "src"} or not isinstance(given["dim"], int):
        return None
    base, messages = given["input"], given["src"]
    if not is_float(messages) or given["dim"] % value(messages).dim() != 0:  # type: ignore[union-attr]
        return None
    if not _is_zeros(base, node, in_place, example) or value(base).dtype is not value(messages).dtype:  # type: ignore[union-attr]
        return None
    shape = value(messages).shape  # type: ignore[union-attr]
    if not same_shape(value(base).shape[1:], shape[1:]):  # type: ignore[union-attr]
        return None
    index = given["index"]
    if kind != "index_add" and not (value(index) is not None and same_shape(value(index).shape, shape)):  # type: ignore[union-attr]
        return None
    index = index if kind == "index_add" else edge_index(index)
    fits = is_index(index) and not example.is_written(index) and same(value(index).shape[0], shape[0])  # type: ignore[union-attr,arg-type]
    return Scatter(node, index, reduce) if fits else None


def _is_zeros(base: object, reader: fx.Node, in_place: bool, example: Example) -> bool:
    if value(base) is None or name_of(base) not in _ZEROS:  # type: ignore[arg-type]
        return False
    return set(base.users) == {reader} if in_place else not example.is_written(base)  # type: ignore[union-attr,arg-type]


def is_index(node: object) -> bool:
    """Whether a node is a vector of integers that may be row numbers."""
    found = value(node)
    return found is not None and found.dim() == 1 and found.dtype in _INDEX_TYPES


def edge_index(node: object) -> fx.Node | None:
    """The vector ``[E]`` that a node repeats along further axes: ``[E, 1]``, ``[E, 1, 1]`` or ``[E, *F]``."""
    while value(node) is not None and repeats(node):  # type: ignore[arg-type]
        operand = node.args[0]  # type: ignore[union-attr]
        if value(operand) is None or not _adds_axes(value(operand).shape, value(node).shape):  # type: ignore[union-attr]
            break
        node = operand
    return node if is_index(node) else None  # type: ignore[return-value]


def repeats(node: fx.Node) -> bool:
    """Whether a node is a call that can add axes to its first argument."""
    if name_of(node) == "getitem" and isinstance(node.args[1], tuple):
        return all(i is None or i is Ellipsis or i == slice(None) for i in node.args[1])
    return name_of(node) in _TRAILING


def _adds_axes(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Whether a shape differs from another in axes behind the first that were 1 or not there."""
    if not before or not after or not same(before[0], after[0]):
        return False
    if len(before) == len(after):
        return all(same(b, a) or same(b, 1) for b, a in zip(before[1:], after[1:], strict=True))
    return all(same(size, 1) for size in (*before[1:], *after[1:]))


def is_on_edges(node: object, edges: Any, structural: Container[fx.Node]) -> bool:
    """Whether a node holds floats with one row an edge."""
    found = value(node)
    on_edges = found is not None and found.dim() > 0 and same(found.shape[0], edges)
    return on_edges and is_float(node) and node not in structural
