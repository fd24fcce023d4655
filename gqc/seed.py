"""Where the random numbers of stochastic rounding come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

import torch
from torch import Tensor

from gqc.runtime.seed_apart import LIMIT, SeedApart


class SeedSource:
    """Gives each compiled stage one seed a call: an int64 tensor ``[number drawn, step]`` on the stage's device.

    With ``seed=None`` the number is drawn from the device's default generator, so ``torch.manual_seed`` and a restored
    generator state repeat a run exactly; otherwise the number is ``seed`` and the step counts the calls. On a GPU the
    count stands in its memory and is raised there: a CUDA graph that is played again draws new numbers.

    With ``apart`` and no ``seed`` the default generators stay as they are
    (:class:`gqc.runtime.seed_apart.SeedApart`).

    Attributes:
        step: calls so far, those on GPUs apart.
    """

    def __init__(self, seed: int | None, apart: bool = False) -> None:
        self.seed = seed
        self.step = 0
        self._apart = SeedApart() if apart else None
        self._next: dict[torch.device, Tensor] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Set the steps back at the end of the context."""
        apart = copy(self._apart)
        step, upcoming = self.step, {device: count.clone() for device, count in self._next.items()}
        try:
            yield
        finally:
            self.step, self._apart = step, apart
            for device, count in self._next.items():
                count[1] = upcoming[device][1] if device in upcoming else 0

    def counts_on(self, device: torch.device) -> bool:
        """Whether seeds come from a count in the device's memory, and so anew each time a CUDA graph is replayed."""
        return self.seed is not None and device.type != "cpu"

    def __call__(self, device: torch.device) -> Tensor:
        if self.seed is None and self._apart is not None:
            return self._apart(device)
        if self.seed is None:
            return torch.randint(LIMIT, (2,), dtype=torch.int64, device=device)
        if not self.counts_on(device):
            self.step += 1
            return torch.tensor([self.seed, self.step - 1], dtype=torch.int64)
        upcoming = self._next.get(device)
        if upcoming is None:
            with torch.inference_mode(False):  # else no other call could raise it
                upcoming = self._next[device] = torch.tensor([self.seed, 0], dtype=torch.int64, device=device)
        seed = upcoming.clone()
        upcoming[1].add_(1)
        return seed
