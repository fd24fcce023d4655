"""What kernels are launched on: a GPU's current stream or, in tests, the emulator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gqc.errors import KernelError

Argument = Any
"""An address (None for none), an integer or a number."""

ARGUMENT_TYPES = {"p": ctypes.c_uint64, "i": ctypes.c_int64, "f": ctypes.c_float}
_TYPE_NAMES = {"p": "address", "i": "integer", "f": "number"}
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_THREADS = 1024


class Kernel(NamedTuple):
    """A kernel of csrc/cuda.

    Attributes:
        name: its symbol.
        arguments: their types in order: p pointer, i int64, f float32.
    """

    name: str
    arguments: str


def of_each_type(name: str, arguments: str) -> tuple[Kernel, ...]:
    """The kernels of GQC_OF_EACH_TYPE, by :func:`gqc.runtime.kernels.dtype_code`."""
    return tuple(Kernel(f"{name}_{suffix}", arguments) for suffix in ("f32", "bf16", "f16"))


class Target(Protocol):
    """A place where kernels run.

    Attributes:
        multiprocessors: of the GPU.
        capability: of its multiprocessors, as in (9, 0) for sm_90.
    """

    multiprocessors: int
    capability: tuple[int, int]

    def start(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Sequence[Any]) -> None:
        """Launch on the current stream; ``arguments`` are ctypes values of the types that ``kernel`` names."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Scratch memory of torch's allocator, which may be dropped as soon as its kernels are launched."""

    def upload(self, values: tuple[int, ...]) -> Tensor:
        """An int64 tensor of constants, kept by the target so that each is copied once."""

    def seconds(self, run: Callable[[], object]) -> float | None:
        """Device time of a call on the current stream; ``None`` where it cannot be measured, as in a graph capture."""


def launch(target: Target, kernel: Kernel, grid: int | tuple[int, ...], block: int, *arguments: Argument) -> None:
    """Launch a kernel.

    Args:
        target: where.
        kernel: what; its table entry says how many arguments of which types there are.
        grid: blocks along x, y and z; trailing ones may be left out. None of them may be 0.
        block: threads of a block, all along x.
        arguments: addresses or None, integers and numbers.

    Raises:
        KernelError: naming the kernel, if the arguments do not fit its entry or the grid does not fit a GPU.
    """
    blocks = (grid,) if isinstance(grid, int) else grid
    x, y, z = (*blocks, 1, 1, 1)[:3]
    if len(blocks) > 3 or not all(0 < n <= most for n, most in zip((x, y, z), _MOST_BLOCKS, strict=True)):
        raise KernelError(f"gqc CUDA kernel {kernel.name}: a grid of {blocks} blocks is outside 1 .. {_MOST_BLOCKS}")
    if not 0 < block <= _MOST_THREADS or block % 32:
        raise KernelError(f"gqc CUDA kernel {kernel.name}: a block of {block} threads is not 32, 64, .. 1024")
    if len(arguments) != len(kernel.arguments):
        raise KernelError(
            f"gqc CUDA kernel {kernel.name} takes {len(kernel.arguments)} arguments ({kernel.arguments}) "
            f"and got {len(arguments)}"
        )
    target.start(kernel, (x, y, z), block, [_typed(kernel, i, value) for i, value in enumerate(arguments)])


def _typed(kernel: Kernel, position: int, value: Argument) -> Any:
    letter = kernel.arguments[position]
    if letter == "f":
        fits = isinstance(value, float | int)
    else:
        fits = isinstance(value, int) or (letter == "p" and value is None)
    if not fits:
        raise KernelError(
            f"gqc CUDA kernel {kernel.name}: argument {position} is {value!r}, which is no {_TYPE_NAMES[letter]}"
        )
    return ARGUMENT_TYPES[letter](value or 0)


def blocks_for(work: int, per_block: int) -> int:
    """Blocks that share out ``work``, ``per_block`` each."""
    return -(-work // per_block)


def strided_blocks(target: Target, work: int, per_block: int, most: int = 8) -> int:
    """Blocks whose threads stride over ``work``: ``per_block`` each, but no more than ``most`` on a multiprocessor.

    Eight blocks of 256 threads fill a multiprocessor.
    """
    return min(blocks_for(work, per_block), most * target.multiprocessors)
