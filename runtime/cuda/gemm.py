"""Launches the kernels of csrc/cuda/gemm*.cu."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from gqc.runtime.cuda import quantize
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

# As in csrc/cuda/gemm_operand.cuh and gemm_tile.cuh.
_CHUNK = 64  # bytes of contracted indices in a tile
_TILE = 128  # rows and columns of a tile of parts
_PIECE = 16  # bytes that are read at once

_EXACT = 131072  # products whose sum int32 holds
_BLOCKS = 2  # of a multiprocessor
_WORTH_A_PART = 1024  # contracted indices
_MOST_ROWS = 4096  # blocks along the rows of an output whose parts are added
_WIDEST = 256  # columns that a block covers
_ROWS_QUANTIZED = {128: 64, 256: 32}  # by columns, of a tile whose left operand is quantized as it is read

_EPILOGUE = "ppppii"
_FLOATS, _INT8 = "", "_int8"  # outputs, as kernels are named by them
_OUTPUTS = {_FLOATS: "ppp", _INT8: "pfpippp"}
_PACK = Kernel("qgemm_pack", "piiiiip")
_PARTS = Kernel("qgemm_parts", "piipiiiiiip")
_PARTS_WHOLE = Kernel("qgemm_parts_whole", "ppiiiip")
_ADD_PARTS = {kind: Kernel(f"qgemm_add_parts{kind}", f"piii{_EPILOGUE}{output}") for kind, output in _OUTPUTS.items()}
_ROWS = {
    (columns, copies, kind): Kernel(
        f"qgemm_rows_{columns}{'_copy' if copies else ''}{kind}", f"pipiii{_EPILOGUE}{output}"
    )
    for columns, copies, (kind, output) in product((128, 256), (False, True), _OUTPUTS.items())
}
_QUANTIZE_ROWS = {
    columns: Kernel(f"quantize_qgemm_{columns}", f"pipfpipppiii{_EPILOGUE[1:]}{_OUTPUTS[_FLOATS]}")
    for columns in (128, 256)
}
_S4_PACK = Kernel("qgemm_s4_pack", "piiiip")
_S4_PARTS = Kernel("qgemm_s4_parts", "pipiiiiip")
_S4_ROWS = {
    (columns, copies): Kernel(
        f"qgemm_s4_rows_{columns}{'_copy' if copies else ''}", f"ppiii{_EPILOGUE}{_OUTPUTS[_FLOATS]}"
    )
    for columns, copies in product((128, 256), (False, True))
}


class _Matrix(NamedTuple):
    """An operand: int8, or packed; its lines run along the contracted index or not."""

    values: Argument
    packed: bool
    along_k: bool


class _Sizes(NamedTuple):
    m: int
    n: int
    k: int


class _Output(NamedTuple):
    """What kernels write: the end of their names, and of their arguments."""

    kind: str
    arguments: tuple[Argument, ...]


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
    if m == 0 or n == 0:
        return
    operands = _Matrix(a, a_packed, not trans_a), _Matrix(b, b_packed, trans_b)
    finish = _product(target, *operands, _Sizes(m, n, k), (a_scale, b_scale, bias, row_scale, relu, dtype))
    finish(_Output(_FLOATS, (out, positive, absmax)))


def qgemm_int8(
    target: Target,
    a: Argument,
    a_scale: Argument,
    b: Argument,
    b_scale: Argument,
    m: int,
    n: int,
    k: int,
    trans_a: bool,
    trans_b: bool,
    bias: Argument,
    row_scale: Argument,
    relu: bool,
    seed: Argument,
    node: int,
    bits: int,
    stochastic: bool,
    dtype: int,
    q: Argument,
    scale: Argument,
    positive: Argument,
) -> None:
    """Multiply int8 matrices and round the result to int8: once for its absmax alone, then again."""
    largest = target.empty((), torch.float32).zero_()
    rounding = (largest.data_ptr(), quantize.limit(bits), seed if stochastic else None, node)
    if m == 0 or n == 0:
        quantize.quantize(target, None, 0, 0, largest.data_ptr(), seed, node, bits, stochastic, q, scale)
        return
    operands = _Matrix(a, False, not trans_a), _Matrix(b, False, trans_b)
    finish = _product(target, *operands, _Sizes(m, n, k), (a_scale, b_scale, bias, row_scale, relu, dtype))
    finish(_Output(_FLOATS, (None, None, largest.data_ptr())))
    finish(_Output(_INT8, (*rounding, q, scale, positive)))


def quantize_qgemm(
    target: Target,
    x: Argument,
    x_dtype: int,
    largest: Argument,
    seed: Argument,
    node: int,
    bits: int,
    stochastic: bool,
    q: Argument,
    scale: Argument,
    b: Argument,
    b_scale: Argument,
    m: int,
    n: int,
    k: int,
    trans_b: bool,
    bias: Argument,
    row_scale: Argument,
    relu: bool,
    dtype: int,
    out: Argument,
    absmax: Argument,
    positive: Argument,
) -> None:
    """Round a matrix to int8 and multiply it, in one kernel where a block covers all columns.

    Of a wider product, or one whose contracted index is shared out, blocks would round the same rows: they are
    quantized by a kernel of its own, which reads them once, too.
    """
    if n > _WIDEST or m * n == 0 or not _by_rows(m, k):
        quantize.quantize(target, x, x_dtype, m * k, largest, seed, node, bits, stochastic, q, scale)
        right = (b, b_scale, False, m, n, k, False, trans_b)
        qgemm(target, q, scale, False, *right, bias, row_scale, relu, dtype, out, absmax, positive)
        return
    if largest is None:
        found = quantize.largest_of(target, x, x_dtype, m * k)  # held until the kernel that reads it is launched
        largest = found.data_ptr()
    columns = _columns(n)
    right = _packed_right(target, _Matrix(b, False, trans_b), n, k, False)
    grid = strided_blocks(target, blocks_for(m, _ROWS_QUANTIZED[columns]), 1, _BLOCKS)
    rounding = (largest, quantize.limit(bits), seed if stochastic else None, node, q, scale)
    rest = (b_scale, bias, row_scale, relu, dtype, out, positive, absmax)
    kernel = _QUANTIZE_ROWS[columns]
    launch(target, kernel, grid, 256, x, x_dtype, *rounding, right.data_ptr(), m, n, k, *rest)


def _columns(n: int) -> int:
    return 128 if n <= 128 else _WIDEST


def _by_rows(m: int, k: int) -> bool:
    """Whether blocks share the rows of a left operand that runs along the contracted index."""
    return 0 < k <= min(_EXACT, max(_WORTH_A_PART, 8 * m))


def _has_s4(target: Target) -> bool:
    """Whether tensor cores multiply packed values as they are."""
    return target.capability[0] == 8


def _product(
    target: Target, a: _Matrix, b: _Matrix, sizes: _Sizes, epilogue: tuple[Argument, ...]
) -> Callable[[_Output], None]:
    """A function that launches what is left of a product when an output is known; it may be called several times."""
    m, n, k = sizes
    s4 = a.packed and b.packed and _has_s4(target)
    if not (a.along_k and _by_rows(m, k)):
        parts, count = _parts(target, a, b, sizes, s4)
        grid = (blocks_for(n, 32), min(m, _MOST_ROWS))

        def add_parts(output: _Output) -> None:
            kernel = _ADD_PARTS[output.kind]
            launch(target, kernel, grid, 256, parts.data_ptr(), count, m, n, *epilogue, *output.arguments)

        return add_parts
    columns = _columns(n)
    right = _packed_right(target, b, n, k, s4)
    copies = a.values % _PIECE == 0 and (k % (2 * _PIECE) == 0 if s4 else not a.packed and k % _PIECE == 0)
    blocks = strided_blocks(target, blocks_for(m, _TILE * 128 // columns) * blocks_for(n, columns), 1, _BLOCKS)
    left = (a.values,) if s4 else (a.values, a.packed)

    def multiply_rows(output: _Output) -> None:
        kernel = _S4_ROWS[columns, copies] if s4 else _ROWS[columns, copies, output.kind]
        launch(target, kernel, blocks, 256, *left, right.data_ptr(), m, n, k, *epilogue, *output.arguments)

    return multiply_rows


def _packed_right(target: Target, b: _Matrix, n: int, k: int, s4: bool) -> Tensor:
    """The right operand in the order in which lanes take it."""
    columns, chunks = blocks_for(n, _columns(n)) * _columns(n), blocks_for(k, 2 * _CHUNK if s4 else _CHUNK)
    right = target.empty((chunks, columns, _CHUNK), torch.uint8)
    lines, width = (n, k) if b.along_k else (k, n)
    kernel, packed = (_S4_PACK, ()) if s4 else (_PACK, (b.packed,))
    arguments = (b.values, *packed, lines, width, b.along_k, columns, right.data_ptr())
    launch(target, kernel, (columns // _TILE, chunks), 128, *arguments)
    return right


def _parts(target: Target, a: _Matrix, b: _Matrix, sizes: _Sizes, s4: bool) -> tuple[Tensor, int]:
    """Sums over parts of the contracted index, each exact in int32, and how many there are."""
    m, n, k = sizes
    tiles, chunk = (blocks_for(m, _TILE), blocks_for(n, _TILE)), 2 * _CHUNK if s4 else _CHUNK
    wanted = min(blocks_for(_BLOCKS * target.multiprocessors, tiles[0] * tiles[1]), blocks_for(k, _WORTH_A_PART))
    part = min(_EXACT, blocks_for(blocks_for(k, max(1, wanted)), chunk) * chunk)
    count = blocks_for(k, part) if k else 0
    parts = target.empty((count, m, n), torch.int32)
    if count:
        rest = (*sizes, part, parts.data_ptr())
        if s4:
            launch(target, _S4_PARTS, (*tiles, count), 256, a.values, a.along_k, b.values, b.along_k, *rest)
        elif _is_whole(a, m) and _is_whole(b, n):
            launch(target, _PARTS_WHOLE, (*tiles, count), 256, a.values, b.values, *rest)
        else:
            launch(target, _PARTS, (*tiles, count), 256, *a, *b, *rest)
    return parts, count


def _is_whole(x: _Matrix, outer: int) -> bool:
    """Whether a matrix is int8 with lines across the contracted index that are read 16 bytes at a time."""
    return not (x.packed or x.along_k) and outer % _PIECE == 0 and x.values % _PIECE == 0


LAUNCHERS = (qgemm, qgemm_int8, quantize_qgemm)
