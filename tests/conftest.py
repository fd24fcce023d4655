"""Options and fixtures shared by all tests."""

from __future__ import annotations

import gc
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gqc  # noqa: F401  makes DGL importable for the tests that use it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data-root", type=Path, help="folder of public data sets; tests that read it skip without")
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")
    parser.addoption("--seed", type=int, help="repeat a run's random data (default: a new seed, printed on top)")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        drawn = random.SystemRandom().randrange(2**32)
        config.option.seed = getattr(config, "workerinput", {}).get("seed", drawn)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and never search what was imported: captures make many objects and few cycles."""
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process of pytest-xdist the seed that is printed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"random data: --seed {config.option.seed}"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus and config.get_verbosity() < 0:  # -q leaves the header out
        terminalreporter.write_line(pytest_report_header(config))


@pytest.fixture(autouse=True)
def _fresh_random_data(request: pytest.FixtureRequest) -> None:
    seed = request.config.option.seed
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if dgl := sys.modules.get("dgl"):  # draws random graphs from a generator of its own
        dgl.seed(seed % 2**31)  # which takes a C int


@pytest.fixture
def data_root(request: pytest.FixtureRequest) -> Path:
    """Folder given by ``--data-root``; the test is skipped without one."""
    root = request.config.option.data_root
    if root is None:
        pytest.skip("needs public data sets: pytest --data-root DIR")
    if not root.is_dir():
        pytest.fail(f"--data-root {root}: no such folder")
    return root
