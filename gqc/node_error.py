"""How far a quantized run of a joint graph is from an exact one, node by node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.int8_copies import MAKES_COPY, QUANTIZE, is_copy
from gqc.passes.nodes import half, origin
from gqc.passes.primitive import mark, ops
from gqc.side_by_side import Values, run_both

OPERAND, OUTPUT, GRADIENT, SAVED = "operand", "output", "gradient", "saved"

_KEEPS_COPY = {ops.quantize_qgemm.default: 2, ops.quantize_qgemm_pointwise.default: 0}
"""Products that store the int8 copy of their operand: at which place among their results."""


@dataclass(frozen=True)
class NodeError:
    """How far a quantized run is from an exact one at one node of the joint graph.

    Attributes:
        node: name of the node.
        module: dotted path of the module that it comes from, ``""`` for the model itself.
        half: ``"forward"`` or ``"backward"``.
        kind: ``"gemm"``, ``"spmm"``, ``"sddmm"``, ... for a primitive, ``"operand"`` for an int8 copy, ``"saved"`` for
            a compressed tensor as the backward reads it, ``"output"`` for what the model returns, ``"gradient"`` for
            what a parameter or input receives.
        parameter: dotted name of the parameter whose gradient the node is, ``""`` for other nodes.
        quantized: whether the node itself reads or holds int8, or values of a few bits.
        relative: ``|q - x| / |x|`` in the Euclidean norm; q is the value in the quantized run, x where nothing is
            rounded anywhere. NaN if either holds a NaN, infinite if x is all zero and q is not.
        cosine: of the angle between q and x; 1 if both are zero.
        own: the same as ``relative``, where x comes from the operands of the quantized run before this node rounds
            them: what this node alone adds. ``None`` if the node is not quantized.
    """

    node: str
    module: str
    half: str
    kind: str
    parameter: str
    quantized: bool
    relative: float
    cosine: float
    own: float | None


def node_errors(joint: JointGraph, arguments: Sequence[Any]) -> Iterator[tuple[NodeError, Values]]:
    """Errors of primitives, int8 copies, outputs and gradients, each with the values that it compares.

    Args:
        joint: the graph after all passes.
        arguments: one value a placeholder, gradients and seed included. None is changed.
    """
    kinds = {n: OUTPUT for n in joint.forward_outputs if isinstance(n, fx.Node)}
    kinds |= {n: GRADIENT for n in joint.gradients if n is not None}
    names = {p.node: p.name for p in joint.placeholders}
    parameters = {n: names[p] for n, p in zip(joint.gradients, joint.gradient_of, strict=True) if n is not None}
    with torch.no_grad(), torch._C._DisableAutocast():
        for node, whole in run_both(joint, arguments):
            for part, kind, value in _parts(node, whole):
                error = _error(part, kind or kinds.get(part), value, parameters.get(part, ""))
                if error is not None:
                    yield error, value


def _parts(node: fx.Node, value: Values) -> Iterator[tuple[fx.Node, str | None, Values]]:
    """A node with its kind and values, after the int8 copies that it makes beside other results, with their scales."""
    primitive = mark(node)
    if node.target in QUANTIZE or node.target is ops.decompress_rows.default:
        yield node, OPERAND if node.target in QUANTIZE else SAVED, value
        return
    if is_copy(node):
        return
    copies = {user: user.args[1] for user in node.users if is_copy(user)} if node.target in MAKES_COPY else {}
    if node.target in _KEEPS_COPY and not copies:
        copies[node] = _KEEPS_COPY[node.target]  # that nobody reads, so the kernel does not keep it
    for copy, at in copies.items():
        pair = slice(at, at + 2)  # type: ignore[operator]
        yield copy, OPERAND, Values(*(tuple(v[pair]) for v in (value.quantized, value.exact, value.unrounded)))
    if value.product is not None:
        value = Values(*value.product)
    yield node, primitive and primitive.kind, value


def _error(node: fx.Node, kind: str | None, value: Values, parameter: str) -> NodeError | None:
    if kind is None:
        return None
    primitive = mark(node)
    quantized, exact, unrounded = value.quantized, value.exact, value.unrounded
    if kind == OPERAND:
        values, scale = quantized
        if values.dtype is torch.uint8:
            values = ops.unpack_int4(values, exact[0].shape[1:])
        quantized = values.float() * scale
    quantized, exact, unrounded = (v[0] if isinstance(v, tuple) else v for v in (quantized, exact, unrounded))
    if not (isinstance(exact, Tensor) and exact.is_floating_point()):
        return None
    in_int8 = kind in (OPERAND, SAVED) or (primitive is not None and primitive.kept is None)
    return NodeError(
        node=node.name,
        module=origin(node).module,
        half=half(node),
        kind=kind,
        parameter=parameter,
        quantized=in_int8,
        relative=_relative(quantized, exact),
        cosine=_cosine(quantized, exact),
        own=_relative(quantized, unrounded) if in_int8 else None,
    )


def _relative(got: Tensor, true: Tensor) -> float:
    difference, length = (got.double() - true.double()).norm().item(), true.double().norm().item()
    if difference == 0:
        return 0.0
    return difference / length if length != 0 else math.inf


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    lengths = (a.norm() * b.norm()).item()
    if lengths == 0:
        return 1.0 if torch.equal(a, b) else 0.0
    return a.dot(b).item() / lengths
