"""Launches the kernels of csrc/cuda/segment_mm.cu: products of runs of rows whose lengths only the GPU knows.

The CPU leaves these products to torch, so they are no kernels of :data:`gqc.runtime.native.SIGNATURES`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

_THREADS = 256
_WARP = 32
_ROWS, _COLUMNS = 128, 64  # of an output tile of segment_mm; those of segment_mm_bwd_b have 64 x 64
_LEAST_ROWS = 256  # that one block of segment_mm_bwd_b adds up
_BLOCKS = 4  # of segment_mm_bwd_b on a multiprocessor, if there are rows enough
_RUNS = Kernel("segment_runs", "piiipp")
_PRODUCT = Kernel("segment_mm", "ppiiiipppiiip")
_PARTS = Kernel("segment_mm_bwd_b", "ppiiiipppp")
_SUM = Kernel("sum_of_parts", "piipp")


def segment_mm(
    target: Target,
    rows: int,
    inner: int,
    columns: int,
    runs: int,
    lengths: Argument,
    a: Argument,
    order: Argument,
    b: Argument,
    b_strides: tuple[int, int, int],
    out: Argument,
) -> None:
    """Compute ``out[i] = a[i] @ b[r]`` for the rows i of each run r.

    Args:
        target: where.
        rows: of ``a`` and ``out``.
        inner: columns of ``a``, float32 ``[rows, inner]``.
        columns: of ``out``, float32 ``[rows, columns]``.
        runs: their number.
        lengths: rows of each run, int64 ``[runs]``. If they do not add up to ``rows``, ``out`` is NaN.
        a: see above.
        order: int64 ``[rows]``, where row i of the runs stands in ``a`` and ``out``; None where it is row i.
        b: float32 ``[runs, inner, columns]``.
        b_strides: of ``b``, in elements.
        out: see above.
    """
    starts, tiles = _tile_runs(target, lengths, runs, rows, _ROWS)
    launch(
        target,
        _PRODUCT,
        (blocks_for(rows, _ROWS) + runs, blocks_for(columns, _COLUMNS)),
        _THREADS,
        *(starts.data_ptr(), tiles.data_ptr(), runs, rows, inner, columns),
        *(a, order, b, *b_strides, out),
    )


def segment_mm_bwd_b(
    target: Target,
    rows: int,
    inner: int,
    columns: int,
    runs: int,
    lengths: Argument,
    a: Argument,
    order: Argument,
    grad: Argument,
    out: Argument,
) -> None:
    """Compute ``out[r] = a[rows of r].T @ grad[rows of r]``, float32 ``[runs, inner, columns]``, as ``segment_mm``."""
    tiles_of_run = blocks_for(inner, _COLUMNS) * blocks_for(columns, _COLUMNS)
    parts_wanted = max(1, _BLOCKS * target.multiprocessors // tiles_of_run)
    tile_rows = max(_LEAST_ROWS, blocks_for(rows, parts_wanted))
    most = blocks_for(rows, tile_rows) + runs
    starts, tiles = _tile_runs(target, lengths, runs, rows, tile_rows)
    parts = target.empty((most, inner, columns), torch.float32)
    launch(
        target,
        _PARTS,
        (most, blocks_for(inner, _COLUMNS), blocks_for(columns, _COLUMNS)),
        _THREADS,
        *(starts.data_ptr(), tiles.data_ptr(), runs, tile_rows, inner, columns),
        *(a, grad, order, parts.data_ptr()),
    )
    blocks = strided_blocks(target, runs * inner * columns, _THREADS)
    launch(target, _SUM, blocks, _THREADS, tiles.data_ptr(), runs, inner * columns, parts.data_ptr(), out)


def _tile_runs(target: Target, lengths: Argument, runs: int, rows: int, tile_rows: int) -> tuple[Tensor, Tensor]:
    """Where each run and its first tile of ``tile_rows`` rows start, both int64 ``[runs + 1]``."""
    starts, tiles = (target.empty((runs + 1,), torch.int64) for _ in range(2))
    launch(target, _RUNS, 1, _WARP, lengths, runs, rows, tile_rows, starts.data_ptr(), tiles.data_ptr())
    return starts, tiles


LAUNCHERS = (segment_mm, segment_mm_bwd_b)
