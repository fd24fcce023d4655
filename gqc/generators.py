"""torch's random number generators, on the CPU and on each GPU in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GeneratorStates:
    """What the generators would draw next."""

    cpu: Tensor
    gpus: dict[int, Tensor]

    @classmethod
    def now(cls) -> GeneratorStates:
        """The states at this moment."""
        return cls(torch.get_rng_state(), {i: torch.cuda.get_rng_state(i) for i in _gpus_in_use()})

    def restore(self) -> None:
        """Let the generators draw again what they drew since; one of a GPU used since then only goes on."""
        torch.set_rng_state(self.cpu)
        for index, state in self.gpus.items():
            torch.cuda.set_rng_state(state, index)


def generators_kept() -> AbstractContextManager[None]:
    """Give the generators the state back that they had, at the end of the context."""
    context: AbstractContextManager[None] = torch.random.fork_rng(devices=_gpus_in_use())
    return context


@contextmanager
def generators_at(states: GeneratorStates) -> Iterator[None]:
    """Draw inside the context what was drawn after ``states``; outside, nothing is different."""
    with generators_kept():
        states.restore()
        yield


def _gpus_in_use() -> range:
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
