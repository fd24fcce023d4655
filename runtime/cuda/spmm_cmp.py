"""Launches the kernels of csrc/cuda/spmm_cmp.cu: max and min over the entries of a row, and their gradients."""

from __future__ import annotations

import torch

from gqc.runtime.cuda import rows as rows_of
from gqc.runtime.cuda.rows import THREADS
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

_VALUES = 4  # features of a lane
_EVEN_THREADS = 256  # of a block that does the same work for every element
_BEST = "piiiiiippippppiippp"
_JOIN = "piiiiiippippppp"

# By whether values are int8: the kernels, the type of a best value, and bytes from which rows of vectors start.
_KERNELS = {
    False: (Kernel("spmm_cmp_f32", _BEST), Kernel("join_spmm_cmp_f32", _JOIN), torch.float32, 16),
    True: (Kernel("spmm_cmp_int8", _BEST), Kernel("join_spmm_cmp_int8", _JOIN), torch.int32, 4),
}
_FILL_ZERO = Kernel("fill_zero", "pi")
_TO_EDGES = Kernel("spmm_cmp_bwd", "ippip")
_TO_SOURCES = Kernel("spmm_cmp_bwd_src", "iipppip")


def spmm_cmp(
    target: Target,
    is_max: bool,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    eids: Argument,
    x: Argument,
    x_rows: Argument,
    scale: Argument,
    width: int,
    out: Argument,
    arg: Argument,
) -> None:
    """Find the best of each row's entries; ``x`` is int8 where it has a scale, else float32."""
    kernel, join, value, alignment = _KERNELS[scale is not None]
    lanes = rows_of.power_of_two(blocks_for(width, _VALUES))
    tiles = blocks_for(width, _VALUES * lanes)
    matrix = rows_of.matrix(target, indptr, is_int64, rows, entries, tiles)
    values, cut_rows = rows_of.pieces(target, matrix, width, value)
    positions = target.empty(values.shape, torch.int32)
    common = (is_max, eids, scale, width, out, arg)
    kept = (values.data_ptr(), positions.data_ptr(), cut_rows.data_ptr())
    side_by_side = width % _VALUES == 0 and (x or 0) % alignment == 0
    grid = (matrix.blocks, tiles)
    launch(target, kernel, grid, THREADS, *matrix, *common, x, x_rows, lanes, side_by_side, *kept)
    rows_of.join(target, join, matrix, width, *common, *kept)


def spmm_cmp_bwd(
    target: Target,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    eids: Argument,
    arg: Argument,
    grad: Argument,
    width: int,
    out: Argument,
) -> None:
    """Route gradients to the winning edges."""
    _fill_zero(target, out, entries * width)
    if rows:
        launch(
            target,
            _TO_EDGES,
            strided_blocks(target, rows * width, _EVEN_THREADS),
            _EVEN_THREADS,
            rows,
            arg,
            grad,
            width,
            out,
        )


def spmm_cmp_bwd_src(
    target: Target,
    is_int64: bool,
    rows: int,
    sources: int,
    src: Argument,
    arg: Argument,
    grad: Argument,
    width: int,
    out: Argument,
) -> None:
    """Sum gradients at the sources of the winning edges, by atomic additions: in any order."""
    _fill_zero(target, out, sources * width)
    if rows:
        grid = strided_blocks(target, rows * width, _EVEN_THREADS)
        launch(target, _TO_SOURCES, grid, _EVEN_THREADS, is_int64, rows, src, arg, grad, width, out)


def _fill_zero(target: Target, out: Argument, count: int) -> None:
    launch(target, _FILL_ZERO, strided_blocks(target, count, _VALUES * _EVEN_THREADS), _EVEN_THREADS, out, count)


LAUNCHERS = (spmm_cmp, spmm_cmp_bwd, spmm_cmp_bwd_src)
