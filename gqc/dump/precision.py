"""In which precision a node computes, as one word that the drawing gives a colour."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from gqc.passes.int8_copies import is_copy
from gqc.passes.primitive import Primitive, ops
from gqc.passes.saved_plan import FLOAT24, PLAN

QUANTIZE, INT8, KEPT, INDEX, MASK, SIZE = "quantize", "int8", "kept", "index", "mask", "size"


def precision(node: fx.Node, primitive: Primitive | None) -> str:
    """``"quantize"`` makes integers of floats; ``"int8"`` computes on them or holds them; ``"kept"`` is a primitive in
    full precision. Everything else is called after its dtype: ``"float32"``, ``"float24"``, ..., ``"index"`` for
    other integers, ``"mask"`` for booleans and packed bits, ``"size"`` for numbers.
    """
    if is_copy(node):
        return QUANTIZE
    if reads_quantized(node) or node.target is ops.unpack_int4.default or _is_packed(node):
        return INT8
    if primitive is not None and primitive.kept is not None:
        return KEPT
    if PLAN in node.meta and node.meta[PLAN].how == FLOAT24:
        return FLOAT24
    return _of(node.meta.get("val"))


def _is_packed(node: fx.Node) -> bool:
    """Whether a node is values of at most 4 bits, which stand in bytes as masks do."""
    made = node.target is operator.getitem and node.args[1] == 0
    return made and node.args[0].target is ops.quantize_int4.default  # type: ignore[union-attr]


def reads_quantized(node: fx.Node) -> bool:
    """Whether an op takes an operand as integers with a scale."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name == "gqc::dequantize":
        return False
    given = zip(schema.arguments, node.args, strict=False)
    return any(argument.name.endswith("_scale") and isinstance(value, fx.Node) for argument, value in given)


def _of(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _of(value[0]) if value else SIZE
    if not isinstance(value, Tensor):
        return SIZE
    if value.dtype is torch.int8:
        return INT8
    if value.dtype in (torch.bool, torch.uint8):
        return MASK
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return INDEX
    return str(value.dtype).removeprefix("torch.")
