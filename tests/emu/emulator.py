"""Runs the kernels of csrc/cuda without a GPU: compiled by g++ against emulator.h, one fiber a CUDA thread."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from csrc.build import compiler
from csrc.objects import Unit, compile_stale, execute
from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.cuda.target import Kernel

HERE = Path("tests/emu")
KERNELS = Path("csrc/cuda")
OWN = Path("build/emu-own")
"""Objects of the emulator's own files, which all libraries share."""
ORDERS = ("ascending", "descending", "random")
FLAGS = [
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-DGQC_EMULATED", "-Icsrc", f"-I{HERE}"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),  # of pragmas, kernels need CUDA's "unroll"
    *("-ffp-contract=off", "-fno-strict-aliasing"),  # kernels read float4 from float*
]
# Of kernels alone: the emulator's own files need neither, and take most of the time.
# At -O1, since the hooks take the time: kernels at -O2 take a third longer to compile and run no faster.
HOOKS = ("-O1", "-fsanitize=thread", "-fno-tree-vectorize")  # see hooks.cpp: each access as it is written
ADDRESS = ("-O1", "-fsanitize=address,bounds,shift,signed-integer-overflow", "-fno-sanitize-recover=all")
IS_SANITIZED = os.environ.get("GQC_SANITIZE") == "address"
"""Whether this process was started with :func:`sanitized`."""
_FRAMES = 32


class Memory(ctypes.Structure):
    """Where a tensor lies, as launch.cpp takes it."""

    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("element", ctypes.c_uint64))


class Emulator:
    """A :class:`gqc.runtime.cuda.target.Target`; :func:`emulated` makes gqc's ops run on it.

    Args:
        library: what :func:`build` returned.
        order: which of the threads that could go on does so, and the order of blocks: one of :data:`ORDERS`.
        seed: of the random order.
        capability: by which launchers choose kernels; the kernels are those of all GPUs.
    """

    multiprocessors = 4

    def __init__(
        self, library: Path, order: str = "ascending", seed: int = 0, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self.capability = capability
        self._library = library
        self._order = ORDERS.index(order)
        self._seed = ctypes.c_uint64(seed)
        self._constants: dict[tuple[int, ...], Tensor] = {}
        self._addresses = Addresses()

    def start(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Sequence[Any]) -> None:
        values = (ctypes.c_uint64 * len(arguments))()
        memory = (Memory * len(arguments))()
        for i, argument in enumerate(arguments):
            ctypes.memmove(ctypes.addressof(values) + 8 * i, ctypes.addressof(argument), ctypes.sizeof(argument))
            if kernel.arguments[i] == "p" and argument.value:
                memory[i] = self._addresses.find(kernel, i, argument.value)
        native = _load(self._library)
        error = native.emu_launch(
            *(kernel.name.encode(), kernel.arguments.encode(), (ctypes.c_uint * 3)(*grid), block),
            *(values, memory, self._order, self._seed),
        )
        if error:
            raise KernelError(f"emulated CUDA kernel {kernel.name}: {error.decode()}{_line(self._library)}")

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory = torch.empty(tuple(shape), dtype=dtype)
        memory.view(-1).view(torch.uint8).fill_(0xFF)  # NaN, or -1
        return memory

    def upload(self, values: tuple[int, ...]) -> Tensor:
        return self._constants.setdefault(values, torch.tensor(values, dtype=torch.int64))

    def seconds(self, run: Callable[[], object]) -> float | None:
        return None  # of an emulated kernel the time says nothing

    @contextmanager
    def running(self) -> Iterator[None]:
        """Launch kernels on CPU tensors inside the context (not thread-safe)."""
        with kernels.emulated(self), self._addresses.watched():
            yield


class Addresses:
    """The tensors whose addresses were asked for of late: only memory of theirs can be an argument of a kernel."""

    _most = 1024

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()  # begin: end, bytes of an element

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note each address that is asked for inside the context."""
        original: Callable[[Tensor], int] = Tensor.data_ptr

        def data_ptr(tensor: Tensor) -> int:
            address = original(tensor)
            self._known.pop(address, None)
            self._known[address] = (address + _extent(tensor), tensor.element_size())
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            return address

        Tensor.data_ptr = data_ptr
        try:
            yield
        finally:
            Tensor.data_ptr = original

    def find(self, kernel: Kernel, argument: int, address: int) -> Memory:
        if address in self._known:
            return Memory(address, *self._known[address])
        for begin, (end, element) in reversed(self._known.items()):
            if begin <= address < end:
                return Memory(begin, end, element)
        raise KernelError(
            f"emulated CUDA kernel {kernel.name}: argument {argument}, {address:#x}, is not in a tensor whose "
            "data_ptr() was asked for inside Emulator.running()"
        )


def build(sources: Sequence[Path], folder: Path, address: bool = IS_SANITIZED) -> Path:
    """Compile what has changed; processes that want the same library wait for the one that builds it.

    Args:
        sources: kernels, ``.cu``.
        folder: of the library and its objects; ``-address`` is added to its name under AddressSanitizer.
        address: put the kernels under AddressSanitizer. It sees what the emulator cannot: accesses outside of a
            thread's own arrays, and integers that overflow. Only a process with :func:`sanitized` can load the library.

    Raises:
        setuptools.errors.CompileError: with the compiler's output.
    """
    command, checks, linked, own = (*compiler(), *FLAGS), HOOKS, (), OWN
    if address:
        folder, own = (path.with_name(f"{path.name}-address") for path in (folder, own))
        command, checks, linked = (*command, "-DGQC_SANITIZED"), ADDRESS, ADDRESS
    library = folder / "libemulated.so"
    compile_one = (*command, "-MMD", "-c", "-x", "c++")
    of_kernels = [Unit(source, folder / f"{source.stem}.o", (*compile_one, *checks)) for source in sources]
    of_emulator = [Unit(source, own / f"{source.stem}.o", compile_one) for source in sorted(HERE.glob("*.cpp"))]
    with _locked(own):
        compile_stale(of_emulator)
    with _locked(folder):
        compile_stale(of_kernels)
        objects = [unit.object for unit in (*of_emulator, *of_kernels)]  # in the order in which their globals are made
        if not library.exists() or library.stat().st_mtime < max(file.stat().st_mtime for file in objects):
            new = library.with_suffix(".new")  # whoever has loaded the old one keeps it
            execute([*command, *linked, "-shared", *map(str, objects), "-o", str(new)])
            new.replace(library)
    return library


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from a folder that is built."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def library(address: bool = IS_SANITIZED) -> Path:
    """That of all kernels of csrc/cuda, see :func:`build`."""
    return build(sorted(KERNELS.glob("*.cu")), Path("build/emu"), address)


def sanitized() -> dict[str, str]:
    """Environment of a Python process that runs kernels under AddressSanitizer, which must be loaded before Python."""
    libasan = execute([*compiler(), "-print-file-name=libasan.so"]).strip()
    return {**os.environ, "GQC_SANITIZE": "address", "LD_PRELOAD": libasan, "ASAN_OPTIONS": "detect_leaks=0"}


@cache
def exports() -> tuple[tuple[str, str], ...]:
    """Name and arguments of each kernel in that library."""
    native, found, arguments = _load(library()), [], ctypes.c_char_p()
    native.emu_kernel.restype = ctypes.c_char_p
    while name := native.emu_kernel(len(found), ctypes.byref(arguments)):
        found.append((name.decode(), arguments.value.decode()))
    return tuple(found)


@cache
def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library.resolve()))
    loaded.emu_launch.restype = ctypes.c_char_p
    return loaded


def _line(library: Path) -> str:
    """Where in a kernel's source the latest fault happened: `` (file:line)``, or nothing if that is not known."""
    places = (ctypes.c_uint64 * _FRAMES)()
    _load(library).emu_frames(places, _FRAMES)
    inside = [f"{place - 1:#x}" for place in places if 0 < place < 1 << 32]  # a frame is the address after its call
    if not inside or shutil.which("addr2line") is None:
        return ""
    command = ["addr2line", "-i", "-e", str(library), *inside]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    lines = [line.split(" ")[0] for line in found if ".cu" in line]
    return f" ({Path(lines[0]).name})" if lines else ""


def _extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to its last one."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
