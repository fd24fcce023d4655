"""Which nodes of a joint graph are elementwise, and the instructions of a pointwise program that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import SymInt, Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.passes.nodes import IDENTITIES, aten, by_name, is_tensor
from gqc.passes.primitive import ops
from gqc.runtime.pointwise.code import MOST_SUMMED
from gqc.runtime.pointwise.program import INSTRUCTIONS, MASK

Size = tuple[int | SymInt, ...]

DROPOUT = ops.dropout.default
SUM = aten.sum.dim_IntList
FLAT_VIEWS = IDENTITIES | {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
"""Ops whose result holds the values of their operand in the same order."""

_FLOATS = {torch.float32: "", torch.bfloat16: "to_bfloat16", torch.float16: "to_float16"}
_EXACT = frozenset({"neg", "abs", "sign", "relu", "minimum", "maximum", "where", "threshold_backward"})
"""Instructions whose result is an operand or its negative, so that it needs no rounding to the operands' type."""

_APPROXIMATED = ("exp", "log", "rsqrt", "sigmoid", "tanh", "silu", "gelu", "elu")

Operand = fx.Node | float


@dataclass(frozen=True)
class Step:
    """What a node computes: one or several instructions, each on the result of the one before.

    Attributes:
        name: the first instruction; ``""`` if there is none.
        operands: its operands.
        parameters: its parameters.
        rounding: the instruction that rounds the result, ``""`` if it needs none.
    """

    name: str
    operands: tuple[Operand, ...]
    parameters: tuple[float, ...] = ()
    rounding: str = ""


def values_of(node: fx.Node) -> list[fx.Node]:
    """The tensors that an elementwise node gives; of a dropout the result and its mask, if they are there."""
    return list(node.users) if node.target is DROPOUT else [node]


def size_of(node: fx.Node) -> Size:
    """The size over which an elementwise node or a sum iterates."""
    value = node.args[0].meta["val"] if node.target is SUM else node.meta["val"]  # type: ignore[union-attr]
    return tuple((value[0] if isinstance(value, tuple) else value).shape)


def is_same(a: int | SymInt, b: int | SymInt) -> bool:
    return statically_known_true(a == b)


def is_same_size(a: Size, b: Size) -> bool:
    return len(a) == len(b) and all(map(is_same, a, b))


def holder(node: fx.Node) -> fx.Node:
    """The node that first held a node's values in the same order."""
    while node.op == "call_function" and node.target in FLAT_VIEWS and is_tensor(node.args[0]):
        node = node.args[0]  # type: ignore[assignment]
    return node


def unexpanded(node: fx.Node) -> fx.Node:
    """The tensor that a node repeats along some axes, which a program does itself."""
    while node.target is aten.expand.default or (node.target in IDENTITIES and is_tensor(node.args[0])):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_contiguous(node: fx.Node) -> bool:
    value, stride = node.meta["val"], 1
    for length, step in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not is_same(length, 1) and not is_same(step, stride):
            return False
        stride = stride * length
    return True


def is_sum(node: fx.Node) -> bool:
    """Whether a node sums over the first axis or over the last one, and nothing else."""
    if node.target is not SUM or by_name(node)["dtype"] is not None or not is_float(node.args[0]):
        return False
    if not is_contiguous(unexpanded(node.args[0])):  # type: ignore[arg-type]
        return False
    size, axes = size_of(node), by_name(node)["dim"]
    if len(size) < 2 or not isinstance(axes, list | tuple) or len(axes) != 1 or not is_plain(size):
        return False
    axis = axes[0] % len(size)
    return axis == 0 or (axis == len(size) - 1 and isinstance(size[-1], int) and size[-1] <= MOST_SUMMED)


def summed_axis(node: fx.Node) -> int:
    """0 or -1."""
    return 0 if node.args[1][0] % len(size_of(node)) == 0 else -1  # type: ignore[index,operator]


def is_plain(size: Size) -> bool:
    """Whether at most one axis is symbolic, so that the size can be asked for without knowing it."""
    return sum(not isinstance(length, int) for length in size) <= 1 and prod(n for n in size if isinstance(n, int)) > 0


def is_float(node: Any) -> bool:
    return is_tensor(node) and node.meta["val"].dtype in _FLOATS


def step_of(node: fx.Node) -> Step | None:
    """The instructions that stand for a node, ``None`` if there are none."""
    if node.op != "call_function" or node.target not in _STEPS:
        return None
    if node.target is DROPOUT:
        x, p, _, stream = node.args
        fits = is_float(x) and {user.args[1] for user in node.users} <= {0, 1} and is_contiguous(unexpanded(x))  # type: ignore[arg-type]
        return Step("dropout", (x,), (p, stream), _FLOATS[x.meta["val"].dtype]) if fits else None  # type: ignore
    if not is_tensor(node) or not _is_full(node):
        return None
    step = _STEPS[node.target](node)  # type: ignore[index]
    return step if step is not None and all(_fits(operand, node) for operand in step.operands) else None


def _is_full(node: fx.Node) -> bool:
    value = node.meta["val"]
    return value.dtype in (*_FLOATS, torch.bool) and value.dim() > 0 and is_plain(value.shape) and is_contiguous(node)


def _fits(operand: Operand, node: fx.Node) -> bool:
    if not isinstance(operand, fx.Node):
        return isinstance(operand, int | float) and not isinstance(operand, bool)
    value = operand.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype not in (*_FLOATS, torch.bool, torch.uint8):
        return False
    if value.dtype is torch.uint8:
        return node.target is ops.dropout_backward.default
    # torch casts a number of another type before it computes.
    if value.dim() == 0 and value.dtype is not _computed(node):
        return False
    return is_contiguous(unexpanded(operand))


def _computed(node: fx.Node) -> torch.dtype:
    """The type that the operands of a comparison are promoted to, or that the result has."""
    dtype = node.meta["val"].dtype
    read = [a.meta["val"].dtype for a in node.args if is_tensor(a)]  # type: ignore[union-attr]
    return dtype if dtype is not torch.bool or not read else read[0]


def _rounding(node: fx.Node, name: str) -> str:
    rounding = _FLOATS.get(node.meta["val"].dtype, "")
    numbers = any(isinstance(a, float) for a in node.args)
    return "" if name in _EXACT and not numbers else rounding


def _kinds_fit(name: str, operands: tuple[Operand, ...]) -> bool:
    for operand, kind in zip(operands, INSTRUCTIONS[name].operands, strict=True):
        mask = isinstance(operand, fx.Node) and is_tensor(operand) and operand.meta["val"].dtype in _MASKS
        if mask != (kind == MASK):
            return False
    return True


_MASKS = (torch.bool, torch.uint8)

Translate = Callable[[fx.Node], Step | None]


def _make(name: str, node: fx.Node, operands: tuple[Any, ...], *parameters: Any) -> Step | None:
    if not all(isinstance(p, int | float) for p in parameters):
        return None
    if not all(isinstance(o, fx.Node | int | float) for o in operands) or not _kinds_fit(name, operands):
        return None
    return Step(name, operands, tuple(map(float, parameters)), _rounding(node, name))


def _plain(name: str) -> Translate:
    count = len(INSTRUCTIONS[name].operands)

    def translate(node: fx.Node) -> Step | None:
        given = by_name(node)
        if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
            return None
        return _make(name, node, tuple(node.args[:count]), *node.args[count:])

    return translate


def _compare(name: str) -> Translate:
    def translate(node: fx.Node) -> Step | None:
        x, other = node.args
        # In half precision torch rounds the number that it compares with.
        if not isinstance(other, fx.Node) and not _is_exact(other, x.meta["val"].dtype):  # type: ignore[union-attr]
            return None
        return _make(name, node, (x, other))

    return translate


def _is_exact(number: Any, dtype: torch.dtype) -> bool:
    fits = isinstance(number, int | float) and dtype in _FLOATS
    return fits and (dtype is torch.float32 or torch.tensor(number, dtype=dtype).item() == number)


def _swapped(node: fx.Node) -> Step | None:
    x, other = node.args[:2]
    return _make("sub", node, (other, x)) if len(node.args) == 2 and not node.kwargs else None


def _power(node: fx.Node) -> Step | None:
    name = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(node.args[1])  # type: ignore[arg-type]
    return _make(name, node, (node.args[0],)) if name is not None else None


def _gelu(name: str, count: int) -> Translate:
    def translate(node: fx.Node) -> Step | None:
        form = {"none": name, "tanh": name.replace("gelu", "gelu_tanh")}[by_name(node)["approximate"]]
        return _make(form, node, tuple(node.args[:count]))

    return translate


def _elu(node: fx.Node) -> Step | None:
    given = by_name(node)
    return _make("elu", node, (node.args[0],), given["alpha"], given["scale"], given["input_scale"])


def _elu_backward(node: fx.Node) -> Step | None:
    grad, alpha, scale, input_scale, of_result, x = node.args
    name = "elu_backward_of_result" if of_result else "elu_backward"
    return _make(name, node, (grad, x), alpha, scale, input_scale)


def _leaky_relu(node: fx.Node) -> Step | None:
    return _make("leaky_relu", node, (node.args[0],), by_name(node)["negative_slope"])


def _leaky_relu_backward(node: fx.Node) -> Step | None:
    grad, x, slope, of_result = node.args
    return None if of_result else _make("leaky_relu_backward", node, (grad, x), slope)


def _clamp_min(node: fx.Node) -> Step | None:
    return _bound("maximum", node)


def _clamp_max(node: fx.Node) -> Step | None:
    return _bound("minimum", node)


def _bound(name: str, node: fx.Node) -> Step | None:
    x, bound = node.args
    return _make(name, node, (x, bound)) if _is_exact(bound, x.meta["val"].dtype) else None  # type: ignore[union-attr]


def _clamp(node: fx.Node) -> Step | None:
    given = by_name(node)
    bounds = [(name, given[key]) for name, key in (("maximum", "min"), ("minimum", "max")) if given[key] is not None]
    if len(bounds) != 1 or not _is_exact(bounds[0][1], given["self"].meta["val"].dtype):
        return None
    return _make(bounds[0][0], node, (given["self"], bounds[0][1]))


def _cast(node: fx.Node) -> Step | None:
    x: Any = node.args[0]
    others = {key for key, value in node.kwargs.items() if value is not None} - {"dtype", "memory_format"}
    if others or not is_float(x) or not is_float(node):
        return None
    before, after = x.meta["val"].dtype, node.meta["val"].dtype
    widens = after is torch.float32 or before is after
    return Step("", (x,), (), "" if widens else _FLOATS[after])


def _drop(node: fx.Node) -> Step | None:
    grad, mask, p = node.args
    return _make("drop", node, (grad, mask), p)


_STEPS: dict[Any, Translate] = {
    DROPOUT: lambda _: None,
    ops.dropout_backward.default: _drop,
    **{op: _plain("add") for op in (aten.add.Tensor, aten.add.Scalar)},
    **{op: _plain("sub") for op in (aten.sub.Tensor, aten.sub.Scalar)},
    **{op: _plain("mul") for op in (aten.mul.Tensor, aten.mul.Scalar)},
    **{op: _plain("div") for op in (aten.div.Tensor, aten.div.Scalar)},
    aten.rsub.Scalar: _swapped,
    **{getattr(aten, name).default: _plain(name) for name in ("minimum", "maximum", "neg", "abs", "sign", "relu")},
    **{getattr(aten, name).default: _plain(name) for name in ("sqrt", "rsqrt", "reciprocal", "square", "exp", "log")},
    **{getattr(aten, name).default: _plain(name) for name in ("sigmoid", "tanh", "silu", "silu_backward")},
    aten.sgn.default: _plain("sign"),
    aten.pow.Tensor_Scalar: _power,
    aten.sigmoid_backward.default: _plain("sigmoid_backward"),
    aten.tanh_backward.default: _plain("tanh_backward"),
    aten.threshold_backward.default: _plain("threshold_backward"),
    aten.gelu.default: _gelu("gelu", 1),
    aten.gelu_backward.default: _gelu("gelu_backward", 2),
    aten.elu.default: _elu,
    aten.elu_backward.default: _elu_backward,
    aten.leaky_relu.default: _leaky_relu,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten.clamp_min.default: _clamp_min,
    aten.clamp_max.default: _clamp_max,
    aten.clamp.default: _clamp,
    **{
        getattr(getattr(aten, name), form): _compare(name)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
        for form in ("Scalar", "Tensor")
    },
    aten.logical_and.default: _plain("logical_and"),
    aten.logical_or.default: _plain("logical_or"),
    aten.logical_not.default: _plain("logical_not"),
    aten.bitwise_and.Tensor: _plain("logical_and"),
    aten.bitwise_or.Tensor: _plain("logical_or"),
    aten.bitwise_not.default: _plain("logical_not"),
    **{op: _plain("where") for op in (aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther)},
    aten.where.Scalar: _plain("where"),
    aten._to_copy.default: _cast,
}


def equals_aten(node: fx.Node) -> bool:
    """Whether an instruction gives what torch's op does, bit for bit, as sums and exponentials do not."""
    step = step_of(node)
    return step is not None and not step.name.startswith(_APPROXIMATED)


def operands_of(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that an elementwise node or a sum computes with."""
    step = step_of(node)
    if step is not None:
        yield from (operand for operand in step.operands if isinstance(operand, fx.Node))
    else:
        yield node.args[0]  # type: ignore[misc]
