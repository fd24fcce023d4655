"""How often a stage was replayed, and why it was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Usage:
    """What became of the calls of a stage under ``Policy.cuda_graph``.

    Attributes:
        refusal: why it is not recorded at all, ``""`` if it may be.
        recordings: how often its forward was recorded.
        forwards, backwards: how many of them were replayed.
        launched: forwards and backwards that ran op by op instead, by reason.
    """

    refusal: str = ""
    recordings: int = 0
    forwards: int = 0
    backwards: int = 0
    launched: Counter[str] = field(default_factory=Counter)

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.refusal:
            yield f"no CUDA graph: {self.refusal}"
        if self.recordings or not self.refusal:
            replayed = f"{self.forwards} forwards and {self.backwards} backwards replayed"
            yield f"CUDA graph: {replayed}, {self.recordings} forwards recorded"
        for reason, count in self.launched.most_common():
            yield f"  {count} not replayed: {reason}"
