"""Processors without x86's instructions get the portable path alone, which must compile for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from csrc import build
from csrc.objects import Unit

CROSS = "aarch64-linux-gnu-g++"


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """What setup.py compiles on aarch64."""
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    return list(build.cpu_units([CROSS]))


def test_only_portable_kernels_are_built(units: list[Unit]) -> None:
    assert build.isas() == ["portable"]
    names = {unit.object.name.removesuffix(".o") for unit in units}
    others = {file.stem for file in (build.SOURCES / "cpu").glob("*.cpp")}
    kernels = {file.stem for file in (build.SOURCES / "cpu" / "kernels").glob("*.cpp")}
    assert names == others | {f"{kernel}.portable" for kernel in kernels}
    assert not [option for unit in units for option in unit.command if option.startswith("-m")]


def test_they_compile(units: list[Unit]) -> None:
    if shutil.which(CROSS) is None:
        pytest.skip(f"needs {CROSS}: apt install g++-aarch64-linux-gnu")

    def said(unit: Unit) -> str:
        command = [*unit.command, "-Werror", "-fsyntax-only", str(unit.source), "-MF", os.devnull]
        return subprocess.run(command, capture_output=True, text=True).stderr

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert "".join(pool.map(said, units)) == ""
