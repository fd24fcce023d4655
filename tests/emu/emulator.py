"""Runs the kernels of csrc/cuda without a GPU: compiled by g++ against emulator.h, one fiber a CUDA thread."""

from __future__ import annotations

import ctypes
import fcntl
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from csrc.build import compiler
from csrc.objects import Unit, compile_stale, execute
from gqc.errors import KernelError
from gqc.runtime.cuda.target import Kernel

HERE = Path("tests/emu")
KERNELS = Path("csrc/cuda")
ORDERS = ("ascending", "descending", "random")
FLAGS = [
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-DGQC_EMULATED", "-Icsrc", f"-I{HERE}"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),  # of pragmas, kernels need CUDA's "unroll"
    *("-ffp-contract=off", "-fno-strict-aliasing"),  # kernels read float4 from float*
]


class Emulator:
    """A :class:`gqc.runtime.cuda.target.Target`.

    Args:
        library: what :func:`build` returned.
        order: which of the threads that could go on does so, and the order of blocks: one of :data:`ORDERS`.
        seed: of the random order.
    """

    multiprocessors = 4

    def __init__(self, library: Path, order: str = "ascending", seed: int = 0) -> None:
        self._launch = _load(library).emu_launch
        self._order = ORDERS.index(order)
        self._seed = ctypes.c_uint64(seed)
        self._constants: dict[tuple[int, ...], Tensor] = {}

    def start(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Sequence[Any]) -> None:
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        blocks = (ctypes.c_uint * 3)(*grid)
        error = self._launch(
            kernel.name.encode(), kernel.arguments.encode(), blocks, block, addresses, self._order, self._seed
        )
        if error:
            raise KernelError(f"emulated CUDA kernel {kernel.name}: {error.decode()}")

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory = torch.empty(tuple(shape), dtype=dtype)
        memory.view(-1).view(torch.uint8).fill_(0xFF)  # NaN, or -1
        return memory

    def upload(self, values: tuple[int, ...]) -> Tensor:
        return self._constants.setdefault(values, torch.tensor(values, dtype=torch.int64))


def build(sources: Sequence[Path], folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile what has changed; processes that want the same library wait for the one that builds it.

    Args:
        sources: kernels, ``.cu``.
        folder: of the library and its objects.
        flags: beyond :data:`FLAGS`.

    Raises:
        setuptools.errors.CompileError: with the compiler's output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library, command = folder / "libemulated.so", (*compiler(), *FLAGS, *flags)
    compile_one = (*command, "-MMD", "-c", "-x", "c++")
    everything = [*sorted(HERE.glob("*.cpp")), *sources]
    units = [Unit(source, folder / f"{source.stem}.o", compile_one) for source in everything]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if compile_stale(units) or not library.exists():
            library.unlink(missing_ok=True)  # whoever has loaded the old one keeps it
            execute([*command, "-shared", *(str(unit.object) for unit in units), "-o", str(library)])
    return library


@cache
def kernels() -> Path:
    """The library of all kernels of csrc/cuda."""
    return build(sorted(KERNELS.glob("*.cu")), Path("build/emu"))


@cache
def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library.resolve()))
    loaded.emu_launch.restype = ctypes.c_char_p
    return loaded
