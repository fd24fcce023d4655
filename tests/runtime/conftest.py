"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gqc.runtime import native
from tests.runtime.backends import BACKENDS, CUDA, ISAS, TILES, on_backend

THREADS = (1, 2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that has the fixture ``backend`` on every back end, on each number of threads where it is the CPU, and
    one that has ``isa`` on every instruction set; with tiles, if its module says ``USES_TILES``.
    """
    tiles = tuple(name for name in native.isas() if name == TILES and getattr(metafunc.module, "USES_TILES", False))
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", (*ISAS, *tiles), indirect=True)
    if {"backend", "threads"} <= set(metafunc.fixturenames):
        cases = [(name, threads) for name in (*tiles, *BACKENDS) for threads in ((1,) if name == CUDA else THREADS)]
        metafunc.parametrize(("backend", "threads"), cases, indirect=True)
    elif "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", (*tiles, *BACKENDS), indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each back end, which the test finds chosen."""
    with on_backend(request.param):
        yield request.param


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each instruction set of this processor."""
    with native.use_isa(request.param):
        yield request.param


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs a test that has ``backend`` once on one thread and once on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
