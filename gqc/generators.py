"""torch's random number generators, on the CPU and on each GPU in use."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def generators_kept() -> AbstractContextManager[None]:
    """Give the generators the state back that they had, at the end of the context."""
    in_use = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    context: AbstractContextManager[None] = torch.random.fork_rng(devices=in_use)
    return context
