"""Where the random numbers of stochastic rounding come from."""

from __future__ import annotations

import torch
from torch import Tensor

_LIMIT = 2**63 - 1


class SeedSource:
    """Gives each compiled stage one seed a call: an int64 tensor ``[number drawn, step]``.

    With ``seed=None`` the number is drawn from torch's default generator, so ``torch.manual_seed`` and a restored
    generator state repeat a run exactly; otherwise the number is ``seed`` and the step counts the calls.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.step = 0

    def __call__(self) -> Tensor:
        if self.seed is None:
            return torch.randint(_LIMIT, (2,), dtype=torch.int64)
        self.step += 1
        return torch.tensor([self.seed, self.step - 1], dtype=torch.int64)
