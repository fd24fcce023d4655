"""Launches the kernels of csrc/cuda/relu.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

_THREADS = 256
_OF_BYTE = 8  # elements of a thread

_RELU_BACKWARD = {False: Kernel("relu_backward_32", "piipp"), True: Kernel("relu_backward_16", "piipp")}


def relu_backward(
    target: Target, grad: Argument, dtype: int, rows: int, width: int, positive: Argument, out: Argument
) -> None:
    """Write ``grad`` where its bit is set, else 0."""
    if rows * width:
        grid = strided_blocks(target, rows * blocks_for(width, _OF_BYTE), _THREADS)
        launch(target, _RELU_BACKWARD[bool(dtype)], grid, _THREADS, grad, rows, width, positive, out)


LAUNCHERS = (relu_backward,)
