"""Launches the kernels of csrc/cuda/quantize.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch

_THREADS = 256
_ABSMAX = {False: Kernel("absmax_f32", "pip"), True: Kernel("absmax_bf16", "pip")}


def absmax(target: Target, x: Argument, is_bf16: bool, n: int, out: Argument) -> None:
    """Raise ``out`` to the largest magnitude of ``n`` elements."""
    if n:
        blocks = min(blocks_for(n, 4 * _THREADS), 8 * target.multiprocessors)
        launch(target, _ABSMAX[is_bf16], blocks, _THREADS, x, n, out)


LAUNCHERS = (absmax,)
