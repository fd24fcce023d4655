"""What becomes of each value that the backward reads: saved as it is, in fewer bits, or computed again."""

from __future__ import annotations

from dataclasses import dataclass

PLAN = "saved_plan"
"""Key of ``node.meta`` under which the packed values of a tensor have their :class:`SavedPlan`."""

AS_IS, INT8_OPERAND, MASK, RECOMPUTED = "as is", "int8 operand", "mask in 1 bit", "recomputed"


def compressed_to(bits: int) -> str:
    """:attr:`SavedPlan.how` of a tensor that is compressed."""
    return f"compressed to {bits} bit{'' if bits == 1 else 's'}"


@dataclass(frozen=True)
class SavedPlan:
    """One value that the backward reads of the forward.

    Attributes:
        name: its node in the joint graph.
        module: dotted path of the module that computes it, ``""`` for the model itself.
        shape: at the example call.
        dtype: of the value, before it is compressed.
        before: bytes of the value at the example call, if the forward saved it as it is.
        after: bytes that are saved of it.
        how: ``"as is"``, ``"int8 operand"``, ``"mask in 1 bit"``, ``"compressed to 2 bits"`` or ``"recomputed"``.
        reason: one sentence fragment for people.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    before: int
    after: int
    how: str
    reason: str

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        shape = ", ".join(map(str, self.shape))
        memory = f"{self.before:,} to {self.after:,} B"
        return f"{self.name}{where}, {self.dtype} [{shape}]: {self.how}, {memory}: {self.reason}"
