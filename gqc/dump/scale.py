"""Where the scale of a quantized tensor comes from."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from gqc.passes.primitive import ops


def scale_source(node: fx.Node) -> str:
    """One line for a ``quantize`` node, ``""`` for others."""
    if node.target not in (ops.quantize.default, ops.quantize_int4.default):
        return ""
    given: dict[str, Any] = {a.name: v for a, v in zip(node.target._schema.arguments, node.args, strict=False)}
    bits, absmax = given.get("bits", 8), given.get("absmax")
    rounding = "stochastic" if given.get("stochastic") else "nearest"
    levels = 2 ** (bits - 1) - 1 if isinstance(bits, int) else "levels"
    return f"{bits} bits, scale = absmax / {levels}, rounded {rounding}; {_absmax(absmax)}"


def _absmax(absmax: Any) -> str:
    if not isinstance(absmax, fx.Node):
        return "a pass over the tensor finds its absmax"
    producer = absmax.args[0] if absmax.target is operator.getitem else absmax
    return f"{producer} gives the absmax beside its result"
