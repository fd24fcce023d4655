"""Launches the kernels of csrc/cuda/dropout.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Target, launch, of_each_type, strided_blocks

_THREADS = 256
_DROPOUT = of_each_type("dropout", "pipiifpp")
_DROPOUT_BACKWARD = of_each_type("dropout_backward", "pipfp")


def dropout(
    target: Target,
    x: Argument,
    dtype: int,
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
        launch(target, _DROPOUT[dtype], grid, _THREADS, x, n, seed, node, threshold, scale, out, mask)


def dropout_backward(
    target: Target, grad: Argument, dtype: int, n: int, mask: Argument, scale: float, out: Argument
) -> None:
    """Write the gradient of :func:`dropout`."""
    if n:
        grid = strided_blocks(target, n, (8 if dtype else 4) * _THREADS)
        launch(target, _DROPOUT_BACKWARD[dtype], grid, _THREADS, grad, n, mask, scale, out)


LAUNCHERS = (dropout, dropout_backward)
