"""Launches the kernels of csrc/cuda/dropout.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Kernel, Target, launch, strided_blocks

_THREADS = 256
_DROPOUT = {False: Kernel("dropout_f32", "pipiifpp"), True: Kernel("dropout_bf16", "pipiifpp")}
_DROPOUT_BACKWARD = {
    False: Kernel("dropout_backward_f32", "pipfp"),
    True: Kernel("dropout_backward_bf16", "pipfp"),
}


def dropout(
    target: Target,
    x: Argument,
    is_bf16: bool,
    n: int,
    seed: Argument,
    node: int,
    threshold: int,
    scale: float,
    out: Argument,
    mask: Argument,
) -> None:
    """Write what is kept of ``n`` elements and the mask, one bit each."""
    if n:
        grid = strided_blocks(target, n, 8 * _THREADS)
        launch(target, _DROPOUT[is_bf16], grid, _THREADS, x, n, seed, node, threshold, scale, out, mask)


def dropout_backward(
    target: Target, grad: Argument, is_bf16: bool, n: int, mask: Argument, scale: float, out: Argument
) -> None:
    """Write the gradient of :func:`dropout`."""
    if n:
        grid = strided_blocks(target, n, (8 if is_bf16 else 4) * _THREADS)
        launch(target, _DROPOUT_BACKWARD[is_bf16], grid, _THREADS, grad, n, mask, scale, out)


LAUNCHERS = (dropout, dropout_backward)
