"""A driver and the torch functions of a CUDA build, for machines without a GPU: see fake_driver.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from csrc.build import compiler
from csrc.objects import execute
from gqc.runtime.cuda import device
from gqc.runtime.cuda.target import ARGUMENT_TYPES, Kernel
from tests.emu import emulator

SOURCE = Path(__file__).with_name("fake_driver.cpp")


_OnLaunch = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_uint),
    *(ctypes.c_int, ctypes.c_size_t, ctypes.c_bool, ctypes.POINTER(ctypes.c_void_p)),
)


class FakeGpus:
    """Two devices with the memory of the host, whose kernels run in the emulator.

    Attributes:
        index: torch's current device.
        stream: handle of torch's current stream on each.
        capturing: whether a CUDA graph is being captured.
        status: what the driver answers to launches.
        last_launch: what it was asked for last.
    """

    def __init__(self, driver: ctypes.CDLL, target: emulator.Emulator) -> None:
        self._driver = driver
        self._target = target
        self._on_launch = _OnLaunch(self._launched)  # kept alive
        driver.fake_on_launch(self._on_launch)
        self.index = 0
        self.stream = {0: 0, 1: 0x5000}
        self.capturing = False
        self.status = 0
        self.last_launch = ""

    def _launched(self, name, grid, threads, device, stream, was_loaded, values) -> int:
        kernel = Kernel(name.decode(), dict(emulator.exports())[name.decode()])
        loaded = "" if was_loaded else ", not loaded"
        self.last_launch = f"{kernel.name} on device {device}, stream {stream or 0}{loaded}"
        if self.status == 0:
            typed = [ARGUMENT_TYPES[t].from_address(values[i]) for i, t in enumerate(kernel.arguments)]
            self._target.start(kernel, tuple(grid[:3]), threads, typed)
        return self.status

    def make(self, index: int = 0) -> device.Gpu:
        return _OnHost(torch.device("cuda", index))

    def find_code_in_fatbins(self, found: bool) -> None:
        self._driver.fake_fatbins_have_code(found)

    @contextmanager
    def using(self, which: torch.device) -> Iterator[None]:
        """As ``torch.cuda.device``: cudaSetDevice makes the context of the device current."""
        before, self.index = self.index, torch.device(which).index
        self._driver.fake_set_device(self.index)
        try:
            yield
        finally:
            self.index = before
            self._driver.fake_set_device(before)


class _OnHost(device.Gpu):
    def empty(self, shape, dtype):
        return torch.empty(tuple(shape), dtype=dtype)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    if torch.cuda.is_available():
        pytest.skip("a real driver is loaded")
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-ldl"]
    execute([*compiler(), str(SOURCE), *flags, "-o", str(library)])
    driver = ctypes.CDLL(str(library))  # found by its name from here on
    for name, arguments in emulator.exports():
        driver.fake_kernel(name.encode(), arguments.encode())
    return driver


@pytest.fixture
def gpus(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpus]:
    target = emulator.Emulator(emulator.library())
    gpus = FakeGpus(driver, target)
    properties = SimpleNamespace(multi_processor_count=4, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: gpus.index)
    monkeypatch.setattr(torch.cuda, "device", gpus.using)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpus.capturing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", gpus.stream.__getitem__, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GQC_CUDA", raising=False)
    driver.fake_set_device(-1)
    gpus.find_code_in_fatbins(True)
    with target.running():
        yield gpus
