"""The one timer of all benchmarks: contestants take turns, so that drift and noise of the machine hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of each timed call of one contestant, in the order of the rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Bounds of the middle half of the calls."""
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def speedup_over(self, base: Timing) -> float:
        """How many times faster than ``base``: the median of the ratios within a round."""
        return statistics.median(b / s for b, s in zip(base.seconds, self.seconds, strict=True))


def paired(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time the contestants in turns: A B C, B C A, C A B, ...

    Args:
        contestants: what to call, by name. A training step includes backward and optimizer.
        rounds: timed calls of each, at least 1.
        warmup: untimed rounds before.
        clock: gives seconds. ``time.process_time``, the processors' time of all threads, tells less of other load on
            the machine.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = clock()
            contestants[name]()
            elapsed = clock() - start
            if number >= 0:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
