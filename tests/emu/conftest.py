"""Fixtures of the emulator's tests."""

from __future__ import annotations

import pytest
import torch

from tests.emu import emulator, small_kernels


@pytest.fixture(params=emulator.ORDERS)
def target(request: pytest.FixtureRequest) -> emulator.Emulator:
    """Runs the test once in each order of threads and blocks."""
    return emulator.Emulator(small_kernels.library(), request.param, torch.initial_seed())
