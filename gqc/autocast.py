"""The state of autocast, which torch keeps for each type of device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_DEVICES = ("cpu", "cuda")


def autocast_dtypes() -> tuple[tuple[str, torch.dtype], ...]:
    """Where autocast is on, and what it casts to."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


@contextmanager
def autocast_off() -> Iterator[None]:
    """Turn autocast off inside the context."""
    with ExitStack() as stack:
        for device, _ in autocast_dtypes():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield
