"""The emulator itself: what is wrong with a kernel is reported, what is right passes."""

from __future__ import annotations

import pytest
import torch

from gqc.runtime import kernels, ops  # noqa: F401  registers torch.ops.gqc
from tests.emu import emulator


@pytest.mark.parametrize("order", emulator.ORDERS)
def test_a_kernel_gives_the_same_in_every_order(order: str) -> None:
    x = torch.randn(10_007)
    with kernels.emulated(emulator.Emulator(emulator.kernels(), order)):
        assert torch.ops.gqc.absmax(x) == x.abs().max()
