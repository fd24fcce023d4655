"""Dumps that several tests read, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

pytest.importorskip("dgl")

from tests.dump.dump_cases import dump

Dumped = tuple[nn.Module, Path]


@pytest.fixture(scope="session")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dumped]:
    """``dumped(name)`` gives a compiled model of tests/dump/dump_cases.py and the folder of its first variant."""
    done: dict[tuple[str, ...], Dumped] = {}

    def once(name: str, skip: tuple[str, ...] = ()) -> Dumped:
        key = (name, *skip)
        if key not in done:
            folder = tmp_path_factory.mktemp(name)
            done[key] = dump(name, folder, skip), folder / "variant1_train"
        return done[key]

    return once
