"""Where the tests of kernels run: each instruction set of this processor, and the CUDA kernels in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gqc.runtime import native
from tests.emu import emulator

CUDA = "cuda-emulated"

ISAS = tuple(name for name in native.isas() if name not in native.BASES)
"""Instruction sets with kernels of their own in every family; the others have some for a few families only."""

BACKENDS = (*ISAS, CUDA)
"""Names for :func:`on_backend`."""


@contextmanager
def on_backend(name: str) -> Iterator[None]:
    """Run kernels of one back end inside the context.

    The emulator runs threads and blocks in a random order, another one with each --seed, and finds every new tensor
    filled with NaN or the largest integer, so that what a kernel forgets to write is seen.
    """
    if name != CUDA:
        with native.use_isa(name):
            yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with emulator.Emulator(emulator.library(), "random", torch.initial_seed()).running():
            yield
    finally:
        torch.use_deterministic_algorithms(before)
