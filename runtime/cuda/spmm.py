"""Launches the kernels of csrc/cuda/spmm.cu and spmm_elements.cu: sums of messages over the entries of a row."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from gqc.runtime.cuda import rows as rows_of
from gqc.runtime.cuda.rows import THREADS, WARP, Matrix, Output, Pieces
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch
from gqc.runtime.ops.feature_layout import OP_CODES, FeatureLayout

_FLOAT32, _INT8, _INT4 = range(3)  # types of elements
_UNWEIGHTED, _FLOAT_WEIGHT, _INT8_WEIGHT = range(3)
_COPY, _MUL = OP_CODES["copy_lhs"], OP_CODES["mul"]
_ELEMENTS = 2  # features of a lane in spmm_elements

_NEIGHBOURS = "piiiiippppppiiipiiipppiipp"
_EACH_ELEMENT = "piiiiiipppiipppiiiipiiipppiipp"


class _Vectors(NamedTuple):
    """A kernel of spmm.cu."""

    kernel: Kernel
    values: int
    """Features that a lane reads at once."""
    alignment: int
    """Bytes from which a row's address must be a multiple."""
    is_exact: bool
    """Whether sums are int32, else float32."""


# By the type of the first operand and the kind of weights; the widest first.
_INT8X4 = _Vectors(Kernel("spmm_int8x4", _NEIGHBOURS), 4, 4, True)
_FLOAT32X4 = _Vectors(Kernel("spmm_f32x4", _NEIGHBOURS), 4, 16, False)
_KERNELS = {
    (_FLOAT32, _UNWEIGHTED): (_FLOAT32X4,),
    (_FLOAT32, _FLOAT_WEIGHT): (_FLOAT32X4,),
    (_FLOAT32, _INT8_WEIGHT): (_FLOAT32X4,),
    (_INT8, _UNWEIGHTED): (_Vectors(Kernel("spmm_int8x16", _NEIGHBOURS), 16, 16, True), _INT8X4),
    (_INT8, _INT8_WEIGHT): (_Vectors(Kernel("spmm_int8x16_by_int8", _NEIGHBOURS), 16, 16, True), _INT8X4),
    (_INT8, _FLOAT_WEIGHT): (
        _Vectors(Kernel("spmm_int8x16_by_f32", _NEIGHBOURS), 16, 16, False),
        _Vectors(Kernel("spmm_int8x4_by_f32", _NEIGHBOURS), 4, 4, False),
    ),
    (_INT4, _UNWEIGHTED): (_Vectors(Kernel("spmm_int4x16", _NEIGHBOURS), 16, 8, True),),
    (_INT4, _FLOAT_WEIGHT): (_Vectors(Kernel("spmm_int4x16_by_f32", _NEIGHBOURS), 16, 8, False),),
}
_ELEMENT_SUM = {
    True: Kernel("spmm_elements_int32", _EACH_ELEMENT),
    False: Kernel("spmm_elements_f32", _EACH_ELEMENT),
}


class _Operand(NamedTuple):
    data: Argument
    rows: Argument
    scale: Argument
    type: int


class _Layout(NamedTuple):
    """What is read of a :class:`FeatureLayout`, for each of its two operands in order."""

    runs: int
    length: int
    widths: tuple[int, int]
    steps: tuple[int, int]
    offsets: tuple[tuple[int, ...], tuple[int, ...]]

    def swapped(self) -> _Layout:
        return self._replace(widths=self.widths[::-1], steps=self.steps[::-1], offsets=self.offsets[::-1])

    @property
    def width(self) -> int:
        return self.runs * self.length

    @property
    def is_weighting(self) -> bool:
        """Whether the features are the first operand's, in order, and the second one has a number for each run."""
        in_order = self.widths[0] == self.width and self.offsets[0] == tuple(range(0, self.width, self.length))
        return in_order and self.steps == (1, 0)


@lru_cache(maxsize=1024)
def _read(layout: FeatureLayout) -> _Layout:
    native = layout.native
    return _Layout(
        native.runs,
        native.length,
        (native.lhs_width, native.rhs_width),
        (native.lhs_step, native.rhs_step),
        (tuple(native.lhs_offsets[: native.runs]), tuple(native.rhs_offsets[: native.runs])),
    )


def spmm(
    target: Target,
    op: int,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    lhs: Argument,
    lhs_rows: Argument,
    rhs: Argument,
    rhs_rows: Argument,
    layout: FeatureLayout,
    factors: Argument,
    divide: bool,
    dtype: int,
    out: Argument,
) -> None:
    """Sum messages of float32 operands."""
    operands = _Operand(lhs, lhs_rows, None, _FLOAT32), _Operand(rhs, rhs_rows, None, _FLOAT32)
    _sum(
        target, op, is_int64, rows, entries, indptr, *operands, _read(layout), Output(out, None, factors, divide, dtype)
    )


def qspmm(
    target: Target,
    op: int,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    lhs: Argument,
    lhs_rows: Argument,
    lhs_scale: Argument,
    rhs: Argument,
    rhs_rows: Argument,
    rhs_scale: Argument,
    packed: bool,
    layout: FeatureLayout,
    factors: Argument,
    divide: bool,
    dtype: int,
    out: Argument,
    absmax: Argument,
) -> None:
    """Sum messages of operands of which one at least has a scale: that is INT8 or packed, one without is float32."""
    quantized = _INT4 if packed else _INT8
    operands = (
        _Operand(lhs, lhs_rows, lhs_scale, quantized if lhs_scale else _FLOAT32),
        _Operand(rhs, rhs_rows, rhs_scale, quantized if rhs_scale else _FLOAT32),
    )
    _sum(
        target,
        op,
        is_int64,
        rows,
        entries,
        indptr,
        *operands,
        _read(layout),
        Output(out, absmax, factors, divide, dtype),
    )


def _sum(
    target: Target,
    op: int,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    lhs: _Operand,
    rhs: _Operand,
    layout: _Layout,
    output: Output,
) -> None:
    if op == _MUL and layout.steps[0] == 0:
        lhs, rhs, layout = rhs, lhs, layout.swapped()
    is_exact = lhs.type != _FLOAT32 and (op == _COPY or rhs.type != _FLOAT32)
    where = (target, is_int64, rows, entries, indptr)
    vectors = _vectors(op, lhs, rhs, layout)
    if vectors:
        matrix, pieces = _sum_vectors(*where, vectors, op, lhs, rhs, layout, output)
    else:
        matrix, pieces = _sum_elements(*where, is_exact, op, lhs, rhs, layout, output)
    rows_of.join(
        target,
        rows_of.JOIN_SUMS[is_exact],
        matrix,
        layout.width,
        *(lhs.scale, rhs.scale, layout.width, *_addresses(pieces), *output.arguments),
    )


def _vectors(op: int, lhs: _Operand, rhs: _Operand, layout: _Layout) -> _Vectors | None:
    """The kernel that reads the first operand in vectors, if the layout and its memory allow it."""
    is_copy = op == _COPY
    if not (is_copy or (op == _MUL and rhs.type != _INT4 and layout.is_weighting)):
        return None
    run = layout.width if is_copy else layout.length
    for vectors in _KERNELS[lhs.type, _weight_kind(op, rhs)]:
        if run % vectors.values == 0 and lhs.data % vectors.alignment == 0:
            return vectors
    return None


def _sum_vectors(
    target: Target,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    vectors: _Vectors,
    op: int,
    x: _Operand,
    w: _Operand,
    layout: _Layout,
    output: Output,
) -> tuple[Matrix, Pieces]:
    width = layout.width
    chunks = width // vectors.values
    tiles = blocks_for(chunks, WARP)
    chunks_of_tile = blocks_for(chunks, tiles)
    matrix = rows_of.matrix(target, indptr, is_int64, rows, entries, tiles)
    pieces = rows_of.pieces(target, matrix, width, _type_of_sum(vectors.is_exact))
    offsets = target.upload(layout.offsets[1]).data_ptr() if op == _MUL and layout.runs > 1 else None
    launch(
        target,
        vectors.kernel,
        (matrix.blocks, tiles),
        THREADS,
        *matrix,
        *(x.data, x.rows, x.scale, w.data, w.rows, w.scale),
        *(_weight_kind(op, w), layout.widths[1], layout.length, offsets),
        *(width, rows_of.power_of_two(chunks_of_tile), chunks_of_tile),
        *(*_addresses(pieces), *output.arguments),
    )
    return matrix, pieces


def _sum_elements(
    target: Target,
    is_int64: bool,
    rows: int,
    entries: int,
    indptr: Argument,
    is_exact: bool,
    op: int,
    lhs: _Operand,
    rhs: _Operand,
    layout: _Layout,
    output: Output,
) -> tuple[Matrix, Pieces]:
    lanes = rows_of.power_of_two(blocks_for(layout.width, _ELEMENTS))
    tiles = blocks_for(layout.width, _ELEMENTS * lanes)
    matrix = rows_of.matrix(target, indptr, is_int64, rows, entries, tiles)
    pieces = rows_of.pieces(target, matrix, layout.width, _type_of_sum(is_exact))
    offsets = target.upload((*layout.offsets[0], *layout.offsets[1]))
    launch(
        target,
        _ELEMENT_SUM[is_exact],
        (matrix.blocks, tiles),
        THREADS,
        *matrix,
        *(op, lhs.data, lhs.rows, lhs.scale, lhs.type, layout.widths[0]),
        *(rhs.data, rhs.rows, rhs.scale, rhs.type, layout.widths[1]),
        *(layout.runs, layout.length, offsets.data_ptr(), *layout.steps, lanes),
        *(*_addresses(pieces), *output.arguments),
    )
    return matrix, pieces


def _weight_kind(op: int, w: _Operand) -> int:
    if op == _COPY:
        return _UNWEIGHTED
    return _FLOAT_WEIGHT if w.type == _FLOAT32 else _INT8_WEIGHT


def _type_of_sum(is_exact: bool) -> torch.dtype:
    return torch.int32 if is_exact else torch.float32


def _addresses(pieces: Pieces) -> tuple[int, int]:
    return pieces.values.data_ptr(), pieces.cut_rows.data_ptr()


LAUNCHERS = (spmm, qspmm)
