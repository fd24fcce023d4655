"""The one door from ops to kernels: each runs on the device of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native
from gqc.runtime.buffers import POOL

if TYPE_CHECKING:
    from gqc.runtime.cuda.target import Argument, Target

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Those of the elements that quantized ops read and write, by the number that stands for them in kernels' arguments."""

_emulator: Target | None = None


def run(on: Tensor, name: str, *arguments: Argument) -> None:
    """Run a kernel on the device that holds ``on`` and, like torch, on its current stream.

    Args:
        on: any of the kernel's tensors.
        name: a key of :data:`gqc.runtime.native.SIGNATURES`.
        arguments: what that signature asks for; tensors as addresses.

    Raises:
        KernelError: if the kernel refuses its arguments, or the back end cannot be loaded.
    """
    if not on_gpu(on):
        native.run(name, *arguments)
    else:
        from gqc.runtime.cuda import run as run_on_gpu  # not before a GPU is used: it needs the extra gqc[cuda]

        run_on_gpu(_emulator, on.device, name, *arguments)


def clock(on: Tensor) -> Callable[[Callable[[], object]], float | None]:
    """Measures the seconds of a call on the GPU that holds ``on``; gives ``None`` where that cannot be done now."""
    from gqc.runtime.cuda import target_of

    return target_of(_emulator, on.device).seconds


def pointer(tensor: Tensor, dtype: torch.dtype) -> int:
    """Address of a contiguous tensor of the given dtype.

    Raises:
        KernelError: if the tensor is anything else, or not in the memory of a processor or GPU.
    """
    if tensor.dtype is dtype and tensor.is_contiguous() and (tensor.is_cpu or tensor.is_cuda):
        return tensor.data_ptr()
    raise KernelError(
        f"a kernel needs a contiguous CPU or CUDA tensor of {dtype} and got {tensor.dtype} on {tensor.device} "
        f"with strides {tensor.stride()}: convert it first"
    )


def dtype_code(dtype: torch.dtype) -> int:
    """The argument of a kernel that stands for one of :data:`DTYPES`."""
    return DTYPES.index(dtype)


def empty(on: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous output with undefined values on the device of ``on``, by default of its dtype."""
    if on.is_cpu:
        return POOL.empty(shape, dtype or on.dtype)
    return on.new_empty(tuple(shape), dtype=dtype)


def new_absmax(on: Tensor) -> Tensor:
    """A float32 number for a kernel's absmax: GPU blocks raise it from 0, the CPU's kernels write it."""
    return on.new_zeros((), dtype=torch.float32) if on_gpu(on) else on.new_empty((), dtype=torch.float32)


def on_gpu(tensor: Tensor) -> bool:
    """Whether the kernels of ``tensor`` are CUDA's, be it in the emulator."""
    return not tensor.is_cpu or _emulator is not None


@contextmanager
def emulated(target: Target) -> Iterator[None]:
    """Run CUDA kernels on CPU tensors inside the context, on a target that can (for tests; not thread-safe)."""
    global _emulator
    before, _emulator = _emulator, target
    try:
        yield
    finally:
        _emulator = before
