"""A CUDA device as a place where kernels run: on torch's current stream, with memory of torch's allocator."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.cuda.target import ARGUMENT_TYPES, Kernel

if TYPE_CHECKING:
    from cuda.core import Kernel as LoadedKernel
    from cuda.core import Stream

_KEPT = 1024


class Gpu:
    """A :class:`gqc.runtime.cuda.target.Target`.

    All kernels are loaded when it is made. A launch finds the kernel, the launch configuration and the stream by
    looking them up.

    Args:
        device: a CUDA device, with its index.

    Raises:
        KernelError: a CUDA graph is being captured, cuda.core is not installed or there is no code for the device.
    """

    def __init__(self, device: torch.device) -> None:
        if torch.version.hip is not None:
            raise KernelError(f"gqc has no kernels for AMD's {device}: move the tensors to the CPU")
        _refuse_in_capture(f"gqc's first call on {device} loads its kernels")
        try:
            from cuda.core import Device, LaunchConfig, Stream, launch

            from gqc.runtime.cuda.code import load
        except ImportError as error:
            raise KernelError(
                f"gqc needs cuda-core for tensors on {device} ({error}): pip install 'gqc[cuda]'"
            ) from error
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.multiprocessors: int = properties.multi_processor_count
        self.capability: tuple[int, int] = (properties.major, properties.minor)
        self._launch, self._stream = launch, Stream
        self._config = lru_cache(_KEPT)(lambda grid, block: LaunchConfig(grid=grid, block=block))
        self._core_device = Device(device.index)
        self._bound = threading.local()
        with torch.cuda.device(device):
            self._bind()
            self._loaded = load(self._core_device)
        self._kernels: dict[Kernel, LoadedKernel] = {}
        self._streams: dict[int, Stream] = {}
        self._constants: dict[tuple[int, ...], Tensor] = {}

    def start(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Sequence[Any]) -> None:
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                self.start(kernel, grid, block, arguments)
            return
        self._bind()
        loaded = self._kernels.get(kernel) or self._find(kernel)
        try:
            self._launch(self._current_stream(), self._config(grid, block), loaded, *arguments)
        except Exception as error:  # cuda.core's own is derived from nothing else
            shown = ", ".join(
                hex(argument.value or 0) if letter == "p" else str(argument.value)
                for letter, argument in zip(kernel.arguments, arguments, strict=True)
            )
            what = f"{kernel.name}({shown}) with {grid} blocks of {block} threads on {self.device}"
            raise KernelError(f"gqc CUDA kernel {what}: {error}") from error

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # The allocator gives memory that is dropped only to later work on the same stream, which runs after the
        # kernels that were launched on it: record_stream is for memory that another stream uses.
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def upload(self, values: tuple[int, ...]) -> Tensor:
        found = self._constants.get(values)
        if found is None:
            _refuse_in_capture(f"constants {values} of a kernel are copied to {self.device}")
            # Waits for the copy, once: any stream may read it from here on.
            found = self._constants[values] = torch.tensor(values, dtype=torch.int64, device=self.device)
        return found

    def seconds(self, run: Callable[[], object]) -> float | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            run()  # its workspaces are made and the caches filled
            begin.record()
            run()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3

    def _bind(self) -> None:
        """Make the device's context current in a thread that torch has not yet used it from: it is launched into."""
        if not hasattr(self._bound, "done"):
            self._core_device.set_current()
            self._bound.done = True

    def _current_stream(self) -> Stream:
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)  # current_stream() makes two objects a call
        stream = self._streams.get(handle)
        if stream is None:
            if len(self._streams) == _KEPT:
                self._streams.clear()
            stream = self._streams[handle] = self._stream.from_handle(handle)
        return stream

    def _find(self, kernel: Kernel) -> LoadedKernel:
        loaded = self._loaded.get(kernel.name)
        if loaded is None:
            raise KernelError(f"gqc's CUDA code has no kernel {kernel.name}: it is older than gqc, build it again")
        expected = [ctypes.sizeof(ARGUMENT_TYPES[letter]) for letter in kernel.arguments]
        found = [argument.size for argument in loaded.arguments_info]
        if found != expected:
            raise KernelError(
                f"gqc CUDA kernel {kernel.name} takes arguments of {found} bytes and gqc passes {expected}: "
                "its code is older than gqc, build it again"
            )
        self._kernels[kernel] = loaded
        return loaded


@cache
def gpu(device: torch.device) -> Gpu:
    """The one of a device."""
    return Gpu(device)


def _refuse_in_capture(what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise KernelError(f"{what}, which a CUDA graph cannot capture: run the step once before capturing it")
