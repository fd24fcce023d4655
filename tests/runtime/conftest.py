"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gqc.runtime import native


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each instruction set of this processor."""
    with native.use_isa(request.param):
        yield request.param


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test once on one thread and once on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
