"""The kernels of tests/emu/kernels, which test the emulator."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torch import Tensor

from gqc.runtime.cuda.target import Kernel, launch
from tests.emu import emulator

FOLDER = Path("tests/emu/kernels")


@cache
def library(address: bool = emulator.IS_SANITIZED) -> Path:
    """That of these kernels, see :func:`tests.emu.emulator.build`."""
    return emulator.build(sorted(FOLDER.glob("*.cu")), Path("build/emu-tests"), address)


def run(target: emulator.Emulator, name: str, blocks: int, threads: int, *arguments: Tensor | int | float) -> None:
    """Launch a kernel; tensors, integers and numbers say what its arguments are."""
    letters = "".join("p" if isinstance(a, Tensor) else "i" if isinstance(a, int) else "f" for a in arguments)
    with target.running():
        addresses = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        launch(target, Kernel(name, letters), blocks, threads, *addresses)
