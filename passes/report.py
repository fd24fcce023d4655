"""What a pass says about the nodes that it looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gqc.passes.saved_plan import SavedPlan

FOUND, QUANTIZED, KEPT, SHARED, REPLACED = "found", "quantized", "kept", "shared", "replaced"
UNSHARED, MOVED = "unshared", "moved"
FUSED, UNFUSED = "fused", "unfused"
LEFT = "left"
COMPRESSED = "compressed"


@dataclass(frozen=True)
class Decision:
    """One line of reason for one node of the joint graph.

    Attributes:
        node: name of the node in the joint graph.
        module: dotted path of the module that the node comes from, ``""`` for the model itself.
        primitive: ``"gemm"``, ``"spmm"``, ``"sddmm"``, ``"edge_softmax"``, ...
        half: ``"forward"`` or ``"backward"``.
        action: ``"found"``, ``"quantized"``, ``"kept"``, ``"shared"``, ``"unshared"``, ``"replaced"``, ``"fused"``,
            ``"unfused"``, ``"left"``, ``"moved"`` or ``"compressed"``.
        reason: one sentence fragment for people.
    """

    node: str
    module: str
    primitive: str
    half: str
    action: str
    reason: str

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        return f"{self.action:9} {self.half:8} {self.primitive:12} {self.node}{where}: {self.reason}"


@dataclass(frozen=True)
class Lifetime:
    """One int8 copy of a tensor, from where it is made to where it is last read.

    Attributes:
        tensor: name of the node whose values it holds.
        producer: name of the ``quantize`` node, or of the int8 result of an op that computes the values too.
        module: dotted path of the module that makes it.
        half: the half that makes it.
        bits: width of a value.
        nbytes: its memory at the example call; a value takes a byte.
        first_use, last_use: names of the nodes that read it first and last.
        last_half: the half that reads it last; if that is not ``half``, it is saved for the backward.
        readers: how many nodes read it.
    """

    tensor: str
    producer: str
    module: str
    half: str
    bits: int
    nbytes: int
    first_use: str
    last_use: str
    last_half: str
    readers: int

    def __str__(self) -> str:
        until = self.last_use if self.last_half == self.half else f"{self.last_use} in the {self.last_half}"
        made = f"int{self.bits} copy of {self.tensor}: {self.nbytes} B, made in the {self.half}"
        return f"{made}, read by {until}" if self.readers == 1 else f"{made}, read {self.readers} times until {until}"


@dataclass
class Report:
    """The decisions of one pass over one joint graph, in graph order.

    Attributes:
        name: the pass.
        decisions: one a node.
        numbers: counts and sizes that hold for the graph as a whole, by what they count.
        lifetimes: the int8 copies that the pass leaves, in graph order.
        plans: the values of the forward that the backward computes again, with ``Policy.save_bits``.
    """

    name: str
    decisions: list[Decision] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    lifetimes: list[Lifetime] = field(default_factory=list)
    plans: list[SavedPlan] = field(default_factory=list)

    def count(self) -> Counter[str]:
        """Number of decisions by action."""
        return Counter(d.action for d in self.decisions)

    def __str__(self) -> str:
        numbers = [f"{what}: {number}" for what, number in self.numbers.items()]
        return "\n  ".join([self.name, *map(str, self.decisions), *map(str, self.lifetimes), *numbers])
