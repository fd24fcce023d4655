"""What the tests of rewritten models share."""

from __future__ import annotations

import importlib.util
import itertools
import types
from collections.abc import Callable
from pathlib import Path

import pytest

_numbers = itertools.count()
Load = Callable[[str], types.ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Imports generated source from a file."""

    def load(source: str) -> types.ModuleType:
        path = tmp_path / f"rewritten_{next(_numbers)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
