"""What a pass says about the nodes that it looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Decision:
    """One line of reason for one node of the joint graph.

    Attributes:
        node: name of the node in the joint graph.
        module: dotted path of the module that the node comes from, ``""`` for the model itself.
        primitive: ``"gemm"``, ``"spmm"``, ``"sddmm"``, ``"edge_softmax"``, ...
        half: ``"forward"`` or ``"backward"``.
        action: ``"found"``, ``"quantized"``, ``"kept"`` or ``"shared"``.
        reason: one sentence fragment for people.
    """

    node: str
    module: str
    primitive: str
    half: str
    action: str
    reason: str


@dataclass
class Report:
    """The decisions of one pass over one joint graph, in graph order."""

    name: str
    decisions: list[Decision] = field(default_factory=list)

    def count(self) -> Counter[str]:
        """Number of decisions by action."""
        return Counter(d.action for d in self.decisions)
