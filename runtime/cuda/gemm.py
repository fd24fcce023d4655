"""Launches the kernels of csrc/cuda/gemm.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

# As in csrc/cuda/gemm_tile.cuh.
_CHUNK = 64  # contracted indices of a tile
_TILE = 128  # rows and columns of a tile of parts
_PIECE = 16  # bytes that are read at once

_EXACT = 131072  # products whose sum int32 holds
_BLOCKS = 2  # of a multiprocessor
_WORTH_A_PART = 1024  # contracted indices
_MOST_ROWS = 4096  # blocks along the rows of an output whose parts are added

_PACK = Kernel("qgemm_pack", "piiiiip")
_PARTS = Kernel("qgemm_parts", "piipiiiiiip")
_PARTS_WHOLE = Kernel("qgemm_parts_whole", "ppiiiip")
_ADD_PARTS = {
    False: Kernel("qgemm_add_parts_f32", "piiippppp"),
    True: Kernel("qgemm_add_parts_bf16", "piiippppp"),
}
_ROWS = {
    (columns, copies, is_bf16): Kernel(
        f"qgemm_rows_{columns}{'_copy' if copies else ''}_{'bf16' if is_bf16 else 'f32'}", "pipiiippppp"
    )
    for columns in (128, 256)
    for copies in (False, True)
    for is_bf16 in (False, True)
}


def qgemm(
    target: Target,
    a: Argument,
    a_scale: Argument,
    a_packed: bool,
    b: Argument,
    b_scale: Argument,
    b_packed: bool,
    m: int,
    n: int,
    k: int,
    trans_a: bool,
    trans_b: bool,
    bias: Argument,
    row_scale: Argument,
    relu: bool,
    dtype: int,
    out: Argument,
    absmax: Argument,
    positive: Argument,
) -> None:
    """Multiply int8 or packed matrices.

    A left operand of many rows is multiplied row by row; of one that is transposed, or has more columns than fit an
    exact sum or than there are rows to share out, blocks share the contracted index.
    """
    if row_scale or relu:
        raise KernelError("gqc's CUDA products know no row scale and no ReLU yet: move the tensors to the CPU")
    if m == 0 or n == 0:
        return
    is_bf16 = dtype == 1
    finish = (a_scale, b_scale, bias, out, absmax)
    if trans_a or not 0 < k <= min(_EXACT, max(_WORTH_A_PART, 8 * m)):
        parts, count = _parts(target, (a, a_packed, not trans_a), (b, b_packed, trans_b), m, n, k)
        grid = (blocks_for(n, 32), min(m, _MOST_ROWS))
        launch(target, _ADD_PARTS[is_bf16], grid, 256, parts.data_ptr(), count, m, n, *finish)
        return
    columns = 128 if n <= 128 else 256
    right = _packed_right(target, (b, b_packed, trans_b), n, k, blocks_for(n, columns) * columns)
    copies = _in_pieces(a, a_packed, True, m, k)
    tiles = blocks_for(m, _TILE * 128 // columns) * blocks_for(n, columns)
    grid = strided_blocks(target, tiles, 1, _BLOCKS)
    kernel = _ROWS[columns, copies, is_bf16]
    launch(target, kernel, grid, 256, a, a_packed, right.data_ptr(), m, n, k, *finish)


def _packed_right(target: Target, b: tuple[Argument, bool, bool], n: int, k: int, columns: int) -> Tensor:
    """The right operand in the order in which lanes take it."""
    values, packed, along_k = b
    chunks = blocks_for(k, _CHUNK)
    right = target.empty((chunks, columns, _CHUNK), torch.uint8)
    lines, width = (n, k) if along_k else (k, n)
    arguments = (values, packed, lines, width, along_k, columns, right.data_ptr())
    launch(target, _PACK, (columns // _TILE, chunks), 128, *arguments)
    return right


def _parts(
    target: Target, a: tuple[Argument, bool, bool], b: tuple[Argument, bool, bool], m: int, n: int, k: int
) -> tuple[Tensor, int]:
    """Sums over parts of the contracted index, each exact in int32, and how many there are."""
    tiles = (blocks_for(m, _TILE), blocks_for(n, _TILE))
    wanted = min(blocks_for(_BLOCKS * target.multiprocessors, tiles[0] * tiles[1]), blocks_for(k, _WORTH_A_PART))
    part = min(_EXACT, blocks_for(blocks_for(k, max(1, wanted)), _CHUNK) * _CHUNK)
    count = blocks_for(k, part) if k else 0
    parts = target.empty((count, m, n), torch.int32)
    if count:
        rest = (m, n, k, part, parts.data_ptr())
        if not (a[2] or b[2]) and _in_pieces(*a, m, k) and _in_pieces(*b, n, k):
            launch(target, _PARTS_WHOLE, (*tiles, count), 256, a[0], b[0], *rest)
        else:
            launch(target, _PARTS, (*tiles, count), 256, *a, *b, *rest)
    return parts, count


def _in_pieces(values: Argument, packed: bool, along_k: bool, outer: int, k: int) -> bool:
    """Whether a matrix is int8 that is read 16 bytes at a time."""
    return not packed and (k if along_k else outer) % _PIECE == 0 and values % _PIECE == 0


LAUNCHERS = (qgemm,)
