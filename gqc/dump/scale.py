"""How a quantized tensor gets its scale."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx

from gqc.passes.primitive import ops


@dataclass(frozen=True)
class Scale:
    """The scale of an int8 copy: ``absmax / levels``.

    Attributes:
        bits: width of a value.
        levels: the largest integer, 127 for 8 bits.
        rounding: ``"stochastic"`` or ``"nearest"``.
        absmax: what finds the largest magnitude in the tensor, for people.
    """

    bits: int
    levels: int
    rounding: str
    absmax: str

    @classmethod
    def of(cls, node: fx.Node) -> Scale | None:
        """The scale that a ``quantize`` node computes, ``None`` for others."""
        if node.target not in (ops.quantize.default, ops.quantize_int4.default):
            return None
        given: dict[str, Any] = {a.name: v for a, v in zip(node.target._schema.arguments, node.args, strict=False)}  # type: ignore[union-attr]
        bits = int(given.get("bits", 8))
        rounding = "stochastic" if given.get("stochastic") else "nearest"
        return cls(bits, 2 ** (bits - 1) - 1, rounding, _found_by(given.get("absmax")))


def _found_by(absmax: Any) -> str:
    if not isinstance(absmax, fx.Node):
        return "a pass over the tensor"
    producer = absmax.args[0] if absmax.target is operator.getitem else absmax
    return f"{producer}, beside its result"
