"""A choice between ways to compute the same thing, made by measuring them once for each class of sizes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

Way = Callable[[], Any]
Clock = Callable[[Way], float | None]
"""Seconds that a way takes on the device, ``None`` where nothing can be measured now."""

_ROUNDS = 3


class Fastest:
    """Remembers which way was the fastest for a class of calls (the adaptive primitives of Tango, SC'23, section 3.3).

    The first calls of a class take the first way, so that one whose sizes come once, as a sampled block's may, is
    never measured. Then each way is timed, which waits for the device; all later calls take the winner.

    Args:
        after: calls of a class before it is measured.
        most: classes that are measured; further ones take the first way.
    """

    def __init__(self, after: int = 3, most: int = 256) -> None:
        self._after = after
        self._most = most
        self._calls: Counter[Hashable] = Counter()
        self._chosen: dict[Hashable, str] = {}

    def choose(self, sizes: Hashable, ways: Mapping[str, Way], clock: Clock) -> str:
        """Name of the way that a call should take.

        Args:
            sizes: the class of the call.
            ways: by name. One that raises RuntimeError when it is measured, as for lack of memory, is not taken.
            clock: measures a way.
        """
        chosen = self._chosen.get(sizes)
        if chosen is not None:
            return chosen
        first = next(iter(ways))
        if self._calls[sizes] < self._after:
            if len(self._calls) < self._most or sizes in self._calls:
                self._calls[sizes] += 1
            return first
        best = dict.fromkeys(ways, math.inf)
        for _ in range(_ROUNDS):
            for name, way in ways.items():
                try:
                    seconds = clock(way)
                except RuntimeError:
                    if name == first:
                        raise
                    continue
                if seconds is None:
                    return first
                best[name] = min(best[name], seconds)
        self._chosen[sizes] = min(best, key=lambda name: best[name])
        return self._chosen[sizes]

    def choices(self) -> dict[Hashable, str]:
        """What was chosen, by class of sizes."""
        return dict(self._chosen)
