"""What the backward may compute from a tensor that compression has rounded.

Stochastic rounding keeps the expectation of what is linear in a tensor. So a mask, an exponential or the derivative of
an activation is computed in the forward, from the exact tensor, and saved itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable
from typing import Any

from torch import fx

from gqc.passes.nodes import (
    FOR_BACKWARD,
    IDENTITIES,
    PARTS,
    RESHAPES,
    aten,
    call,
    inputs_of_values,
    is_float,
    is_size,
    replay,
    size,
)
from gqc.passes.primitive import ops
from gqc.passes.saved_values import REPEATED, is_repeated
from gqc.passes.saving_modules import reads

_LINEAR = (
    REPEATED
    | RESHAPES
    | IDENTITIES
    | PARTS
    | {
        *(aten._to_copy.default, aten.neg.default, aten.sum.dim_IntList, aten.sum.default, aten.mean.dim),
        *(aten.mean.default, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar),
        *(aten.mul.Scalar, aten.div.Scalar, aten.cat.default, aten.stack.default, aten.constant_pad_nd.default),
    }
)
"""Ops that are linear in all their operands together."""

_LINEAR_IN_ONE = {
    aten.mul.Tensor: (0, 1),
    aten.div.Tensor: (0,),
    aten.where.self: (1, 2),
    aten.where.ScalarSelf: (2,),
    aten.where.ScalarOther: (1,),
    aten.masked_fill.Scalar: (0,),
}
"""Ops that are linear in one of these operands, if the others are exact; ``where`` in both."""

DERIVATIVES = frozenset(
    getattr(aten, f"{name}_backward").default
    for name in (
        *("tanh", "sigmoid", "silu", "gelu", "elu", "hardtanh", "hardswish", "hardsigmoid", "softplus", "mish"),
        *("log_sigmoid", "softshrink", "hardshrink"),
    )
)
"""Backwards of elementwise ops: the gradient, their first operand, times what depends on the others alone."""

_SHAPES = frozenset(
    getattr(aten, f"{name}_backward").default
    for name in (
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    )
)
"""Ops that read of their second operand only the shape."""

_FACTORS = {
    aten._log_softmax_backward_data.default: (1,),
    ops.cross_entropy_backward.default: (1,),
    ops.gat_bwd.default: (1, 2, 3, 4),
    ops.attend_bwd.default: (1, 2, 3, 5, 6),
    aten.native_layer_norm_backward.default: (3, 4),
    aten.native_group_norm_backward.default: (2, 3),
    aten.native_batch_norm_backward.default: (3, 4, 5, 6),
}
"""Operands of which an error becomes a factor of the result: logits of a softmax, means and deviations of a
normalization."""

_SQUARES = (ops.edge_softmax_bwd.default, aten._softmax_backward_data.default)
"""Ops that multiply their second operand with itself: results of a softmax."""

FEWEST_BITS_OF_FACTORS = 8
"""Of such an operand."""

FEWEST_BITS_OF_SQUARES = 4
"""Of a tensor that the backward multiplies with itself: the variance of an element is 1/900 of its squared range."""


def fixed_in_forward(
    early: Iterable[fx.Node],
    needed: Container[fx.Node],
    repeats: Container[fx.Node],
    is_compressed: Callable[[fx.Node], bool],
) -> set[fx.Node]:
    """The nodes that only the forward may compute, because they are not linear in a tensor that is compressed.

    Args:
        early: the nodes that do not depend on a gradient, in graph order.
        needed: those that the forward computes anyway.
        repeats: those that the backward may compute too, views aside.
        is_compressed: whether a float tensor is compressed if it is saved.
    """
    rounded: set[fx.Node] = set()
    fixed: set[fx.Node] = set()
    for node in early:
        if node.op != "call_function" or is_size(node):
            continue
        computed = node in needed or (node.target is operator.getitem and node.args[0] in needed)
        read = [n for n in inputs_of_values(node) if n in rounded]
        if not computed or is_repeated(node) or node in repeats:
            if read and _is_linear(node, read):
                rounded.add(node)
                continue
            if read:
                fixed.add(node)
            elif node not in repeats:
                continue
        if is_compressed(node):
            rounded.add(node)
    return fixed


def _is_linear(node: fx.Node, read: list[fx.Node]) -> bool:
    if node.target in _LINEAR:
        return True
    at = [i for i, argument in enumerate(node.args) if argument in read]
    places = _LINEAR_IN_ONE.get(node.target, ())  # type: ignore[call-overload]
    return set(at) <= set(places) and (len(at) == 1 or node.target is aten.where.self)


def fewest_bits(node: fx.Node, late: Container[fx.Node], again: Container[fx.Node] = ()) -> tuple[int, str]:
    """How many bits a saved tensor has at least for what the backward computes from it, and what that is.

    Args:
        node: the tensor.
        late: the nodes that depend on a gradient.
        again: others that only the backward computes.
    """
    found = list(reads(node, late, again))
    if any(reader.args[i] is read for reader, read in found for i in _FACTORS.get(reader.target, ())):  # type: ignore
        return FEWEST_BITS_OF_FACTORS, "its error becomes a factor"
    if any(reader.target in _SQUARES and reader.args[1] is read for reader, read in found) or _is_squared(
        {reader for reader, _ in found}
    ):
        return FEWEST_BITS_OF_SQUARES, "the backward multiplies it with itself"
    return 1, ""


def _is_squared(readers: set[fx.Node]) -> bool:
    """Whether what is computed from a tensor meets the tensor again, so that its rounding errors are multiplied."""
    stack = [user for reader in readers for user in reader.users]
    seen: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in readers:
            return True
        if node not in seen and not is_size(node):
            seen.add(node)
            stack.extend(node.users)
    return False


def let_read_linearly(node: fx.Node, late: Container[fx.Node]) -> None:
    """Replace a backward op by one that is linear in what it reads of the forward, or does not read it.

    The derivative of an activation and the inverse of a divisor are computed in the forward, where the gradients
    multiply them; what only says how large a result is becomes an empty tensor.
    """
    if node.target in DERIVATIVES and any(_is_early(n, late) for n in node.args):
        gradient, *rest = node.args
        read = [n for n in rest if isinstance(n, fx.Node)]
        with node.graph.inserting_before(max(read).next):
            ones = call(aten.full_like.default, (read[0], 1.0), node, f"{node.name}_ones")
            factor = call(node.target, (ones, *rest), node, f"{node.name}_derivative", **node.kwargs)  # type: ignore
        _multiply(node, gradient, _in_forward(factor, ones))
    elif node.target is aten.div.Tensor and _is_early(node.args[1], late):
        _multiply(node, node.args[0], _inverse(node.args[1], node))  # type: ignore[arg-type]
    elif node.target in _SHAPES and _is_early(node.args[1], late):
        shown: fx.Node = node.args[1]  # type: ignore[assignment]
        with node.graph.inserting_before(node):
            shape = [size(shown, axis) for axis in range(shown.meta["val"].dim())]
            empty = call(aten.new_empty.default, (node.args[0], shape), node, f"{node.name}_shape")
        node.update_arg(1, empty)


def _is_early(node: object, late: Container[fx.Node]) -> bool:
    """Whether a node is a float tensor that the forward computes, not one that the caller holds."""
    return isinstance(node, fx.Node) and is_float(node) and node not in late and node.op == "call_function"


def _in_forward(*nodes: fx.Node) -> fx.Node:
    for node in nodes:
        node.meta.update({"partitioner_tag": "is_forward", FOR_BACKWARD: True})
    return nodes[0]


def _inverse(divisor: fx.Node, reader: fx.Node) -> fx.Node:
    """The inverse of a divisor, made before the divisor is repeated or reshaped, so that little is saved of it."""
    if divisor.target is aten.expand.default or divisor.target in RESHAPES:
        inverse = _inverse(divisor.args[0], reader)  # type: ignore[arg-type]
        with divisor.graph.inserting_before(divisor.next):
            if divisor.target in RESHAPES:
                return _in_forward(replay(divisor, inverse, f"{divisor.name}_inverse"))
            arguments = (inverse, *divisor.args[1:])
            return _in_forward(call(divisor.target, arguments, reader, f"{divisor.name}_inverse", **divisor.kwargs))
    with divisor.graph.inserting_before(divisor.next):
        return _in_forward(call(aten.reciprocal.default, (divisor,), reader, f"{divisor.name}_inverse"))


def _multiply(node: fx.Node, gradient: Any, factor: fx.Node) -> None:
    with node.graph.inserting_before(node):
        product = call(aten.mul.Tensor, (gradient, factor), node, f"{node.name}_scaled")
    if "desc" in node.meta:
        product.meta["desc"] = node.meta["desc"]
    node.replace_all_uses_with(product)
    node.graph.erase_node(node)
