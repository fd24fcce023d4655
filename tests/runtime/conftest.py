"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gqc.runtime import native
from tests.runtime.backends import BACKENDS, CUDA, ISAS, on_backend

THREADS = (1, 2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that has the fixture ``backend`` on every back end, on each number of threads where it is the CPU, and
    one that has ``isa`` on every instruction set; one with few kernels only if ``GAINING_ISAS`` of the module names it.
    """
    gaining = getattr(metafunc.module, "GAINING_ISAS", ())
    few = tuple(name for name in native.isas() if name in native.BASES and name in gaining)
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", (*ISAS, *few), indirect=True)
    if {"backend", "threads"} <= set(metafunc.fixturenames):
        cases = [(name, threads) for name in (*few, *BACKENDS) for threads in ((1,) if name == CUDA else THREADS)]
        metafunc.parametrize(("backend", "threads"), cases, indirect=True)
    elif "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", (*few, *BACKENDS), indirect=True)


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
