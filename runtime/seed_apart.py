"""Seeds that leave torch's random number generators as they are."""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 2**63 - 1


class SeedApart:
    """Gives one seed a step, ``[number, step]``, for a run that draws eager's random numbers besides.

    The number is what torch's generator on the CPU would give next, and still gives; the step counts the calls at which
    it would give the same. So ``torch.manual_seed`` repeats a run.
    """

    def __init__(self) -> None:
        self._number = -1
        self._step = 0

    def __call__(self, device: torch.device | str = "cpu") -> Tensor:
        generator = torch.default_generator.clone_state()
        number = int(torch.randint(LIMIT, (), dtype=torch.int64, generator=generator))
        self._step, self._number = (self._step + 1 if number == self._number else 0), number
        return torch.tensor([number, self._step], dtype=torch.int64).to(device)
