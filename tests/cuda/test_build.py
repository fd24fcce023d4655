"""nvcc compiles every kernel for every architecture: without warnings, and without memory for what fits registers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from csrc.nvcc import SOURCES, Nvcc, Usage, usage
from csrc.objects import Unit, compile_stale

pytestmark = pytest.mark.xdist_group("packaging")  # the packages are built from the same objects

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.stem for path in (ROOT / SOURCES).glob("*.cu"))

LOG = """
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'spilling' for 'sm_75'
ptxas info    : Function properties for spilling
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 376 bytes cmem[0]
"""


@pytest.fixture(scope="module")
def units() -> dict[str, Unit]:
    """The compilations by family, all up to date; those of the installation, where nothing changed since."""
    nvcc = Nvcc.find()
    if nvcc is None:
        pytest.skip("no nvcc in $CUDA_HOME or on the path")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        units = nvcc.units(warnings_are_errors=True)
        compile_stale(units)
    finally:
        os.chdir(before)
    return {unit.source.stem: unit._replace(object=ROOT / unit.object) for unit in units}


@pytest.mark.parametrize("family", FAMILIES)
def test_family_compiles_without_warnings_and_spills(units: dict[str, Unit], family: str) -> None:
    log = units[family].log()
    assert "warning" not in log
    kernels = list(usage(log))
    assert {k.architecture for k in kernels} == {f"sm_{a}" for a in Nvcc.find().architectures}
    assert [k for k in kernels if k.spills or k.stack] == []


def test_spills_are_read_from_the_log() -> None:
    plain, spilling = usage(LOG)
    assert plain == Usage("plain", "sm_90", registers=32, spills=0, stack=0)
    assert spilling == Usage("spilling", "sm_75", registers=255, spills=20, stack=16)
