"""What a pass says about the nodes that it looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FOUND, QUANTIZED, KEPT, SHARED, REPLACED = "found", "quantized", "kept", "shared", "replaced"


@dataclass(frozen=True)
class Decision:
    """One line of reason for one node of the joint graph.

    Attributes:
        node: name of the node in the joint graph.
        module: dotted path of the module that the node comes from, ``""`` for the model itself.
        primitive: ``"gemm"``, ``"spmm"``, ``"sddmm"``, ``"edge_softmax"``, ...
        half: ``"forward"`` or ``"backward"``.
        action: ``"found"``, ``"quantized"``, ``"kept"``, ``"shared"`` or ``"replaced"``.
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


@dataclass
class Report:
    """The decisions of one pass over one joint graph, in graph order.

    Attributes:
        name: the pass.
        decisions: one a node.
        numbers: counts and sizes that hold for the graph as a whole, by what they count.
    """

    name: str
    decisions: list[Decision] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def count(self) -> Counter[str]:
        """Number of decisions by action."""
        return Counter(d.action for d in self.decisions)

    def __str__(self) -> str:
        numbers = [f"{what}: {number}" for what, number in self.numbers.items()]
        return "\n  ".join([self.name, *map(str, self.decisions), *numbers])
