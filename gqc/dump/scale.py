"""How a quantized tensor gets its scale."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import fx

from gqc.dump.source import identifier
from gqc.passes.int8_copies import copied, is_copy, made_by_program, maker_of, rounding_of
from gqc.passes.nodes import by_name
from gqc.passes.primitive import ops


@dataclass(frozen=True)
class Scale:
    """The scale of an int8 copy: ``absmax / levels``.

    Attributes:
        bits: width of a value.
        levels: the largest integer, 127 for 8 bits.
        rounding: ``"stochastic"`` or ``"nearest"``.
        absmax: what finds the largest magnitude in the tensor, for people.
        tensor: name of the node whose values it holds.
    """

    bits: int
    levels: int
    rounding: str
    absmax: str
    tensor: str

    @classmethod
    def of(cls, node: fx.Node) -> Scale | None:
        """The scale of an int8 copy, ``None`` for other nodes."""
        if not is_copy(node):
            return None
        bits, stochastic = rounding_of(node)
        rounding = "stochastic" if stochastic else "nearest"
        return cls(bits, 2 ** (bits - 1) - 1, rounding, _found_by(node), identifier(copied(node).name))


def _found_by(copy: fx.Node) -> str:
    maker = maker_of(copy)
    if maker.target is ops.qgemm_int8.default:
        return "a first product"
    if made_by_program(copy):
        return "a first run of the program" if maker.target is ops.pointwise.default else "a first product"
    absmax = by_name(maker)["absmax"]
    if not isinstance(absmax, fx.Node):
        return "a pass over the tensor"
    producer = absmax.args[0] if absmax.target is operator.getitem else absmax
    return f"{producer}, beside its result"
