"""Launches the kernels of csrc/cuda/gat.cu and gat_bwd.cu: the edge phase of graph attention and its gradients."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch

from gqc.runtime.cuda import rows as rows_of
from gqc.runtime.cuda.rows import JOIN_SUMS, THREADS, WARP, Matrix, Output
from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

_RANDOM_BLOCK = 8  # elements that one draw of the generator gives bits
_ELEMENT_THREADS = 256

_ROWS = "piiiiiiiiiiipiii"  # the matrix, the heads, dropout
_GAT = f"{_ROWS}ppppfppfppppppp"
_BY_DESTINATION = f"{_ROWS}ppfppppppppppp"
_BY_SOURCE = f"{_ROWS}ppfppppppfpppppp"
_JOIN = Kernel("gat_join", "piiiiiiifpppppppp")
_DESTINATIONS = Kernel("gat_bwd_destinations", "iipppppfppp")
_JOIN_PARTS = Kernel("gat_bwd_join_parts", "iipp")
Arguments = tuple[Argument, ...]


class _Load(NamedTuple):
    """How a lane reads features: kernels end with ``suffix``."""

    suffix: str
    values: int
    """Features that a lane reads at once."""
    alignment: int
    """Bytes from which a row's address must be a multiple."""


_ANY = _Load("any", 4, 1)
_LOADS = {  # by whether features are INT8; the widest first
    True: (_Load("int8x16", 16, 16), _Load("int8x4", 4, 4)),
    False: (_Load("f32x4", 4, 16),),
}


class _Heads(NamedTuple):
    """How groups of lanes share out the features of a row; the arguments of every kernel that works on them.

    Attributes:
        heads, width: their number, and features of each.
        lanes: of a group.
        heads_of_tile: that a group works on at once.
        parts: that a head is cut into where it is wider than a group.
        chunks_of_part: of the runs of features that a lane reads.
    """

    heads: int
    width: int
    lanes: int
    heads_of_tile: int
    parts: int
    chunks_of_part: int

    @property
    def tiles(self) -> int:
        return blocks_for(self.heads, self.heads_of_tile) * self.parts

    @property
    def random_blocks(self) -> int:
        """Blocks of random numbers that the elements of an edge and the heads of a tile lie in, at most."""
        aligned = gcd(self.heads, self.heads_of_tile, _RANDOM_BLOCK)  # where such a run may start
        return blocks_for(_RANDOM_BLOCK - aligned + self.heads_of_tile, _RANDOM_BLOCK)


def gat(
    target: Target,
    is_int64: bool,
    rows: int,
    edges: int,
    indptr: Argument,
    sources: Argument,
    eids: Argument,
    el: Argument,
    er: Argument,
    u: Argument,
    u_scale: Argument,
    heads: int,
    width: int,
    slope: float,
    seed: Argument,
    node: int,
    threshold: int,
    keep_scale: float,
    out: Argument,
    absmax: Argument,
    largest: Argument,
    total: Argument,
) -> None:
    """Sum the features of sources, weighted by the attention of each destination, its maximum and its sum."""
    if not width:  # the softmax alone: el stands for features of the same rows and heads
        u, u_scale, width = el, None, 1
        unread = target.empty((rows * heads,), torch.float32), target.empty((1,), torch.float32)
        out, absmax = (tensor.data_ptr() for tensor in unread)
    load = _load(width, (u, u_scale))
    shape = _shape(heads, width, load)
    matrix = rows_of.matrix(target, indptr, is_int64, rows, edges, shape.tiles)
    pieces = rows_of.pieces(target, matrix, heads * width, torch.float32)
    softmax_pieces = target.empty((2 * matrix.shares, heads, 2), torch.float32)
    scratch = (pieces.values.data_ptr(), softmax_pieces.data_ptr(), pieces.cut_rows.data_ptr())
    results = (out, largest, total, absmax)
    launch(
        target,
        Kernel(f"gat_{load.suffix}", _GAT),
        (matrix.blocks, shape.tiles),
        THREADS,
        *(*matrix, *shape, seed, node, threshold, shape.random_blocks),
        *(sources, eids, el, er, slope, u, u_scale, keep_scale, *scratch, *results),
    )
    rows_of.join(target, _JOIN, matrix, heads * width, heads, width, keep_scale, u_scale, *scratch, *results)


def gat_bwd(
    target: Target,
    is_int64: bool,
    num_src: int,
    num_dst: int,
    edges: int,
    csc_indptr: Argument,
    csc_indices: Argument,
    csc_eids: Argument,
    csr_indptr: Argument,
    csr_indices: Argument,
    csr_eids: Argument,
    el: Argument,
    er: Argument,
    largest: Argument,
    total: Argument,
    u: Argument,
    u_scale: Argument,
    grad: Argument,
    grad_scale: Argument,
    heads: int,
    width: int,
    slope: float,
    seed: Argument,
    node: int,
    threshold: int,
    keep_scale: float,
    stats: Argument,
    d_u: Argument,
    absmax: Argument,
    d_el: Argument,
    d_er: Argument,
) -> None:
    """Compute the gradients of :func:`gat`: that of er by destination first, then by source those of u and el.

    ``stats`` becomes, for each destination and head, what the second pass reads of it.
    """
    load = _load(width, (u, u_scale), (grad, grad_scale))
    shape = _shape(heads, width, load)
    shared = (*shape, seed, node, threshold, shape.random_blocks)
    operands = (slope, u, u_scale, grad, grad_scale)
    scales = (u_scale, grad_scale, keep_scale)

    matrix = rows_of.matrix(target, csc_indptr, is_int64, num_dst, edges, shape.tiles)
    of_parts = None if shape.parts == 1 else target.empty((num_dst, heads, shape.parts, 4), torch.float32)
    sums = stats if of_parts is None else of_parts.data_ptr()
    _by_destination(
        target, load, shape, matrix, shared, (csc_indices, csc_eids), operands, (el, er, largest, total), sums
    )
    blocks = strided_blocks(target, num_dst * heads, _ELEMENT_THREADS)
    launch(
        target,
        _DESTINATIONS,
        blocks,
        _ELEMENT_THREADS,
        *(num_dst * heads, shape.parts, er, largest, total, *scales, sums, stats, d_er),
    )

    matrix = rows_of.matrix(target, csr_indptr, is_int64, num_src, edges, shape.tiles)
    of_parts = None if shape.parts == 1 else target.empty((num_src, heads, shape.parts), torch.float32)
    d_el_of_parts = d_el if of_parts is None else of_parts.data_ptr()
    results = (d_u, d_el_of_parts, absmax)
    _by_source(target, load, shape, matrix, shared, (csr_indices, csr_eids), operands, (el, stats, keep_scale), results)
    if of_parts is not None:
        blocks = strided_blocks(target, num_src * heads, _ELEMENT_THREADS)
        arguments = (num_src * heads, shape.parts, d_el_of_parts, d_el)
        launch(target, _JOIN_PARTS, blocks, _ELEMENT_THREADS, *arguments)


def _by_destination(
    target: Target,
    load: _Load,
    shape: _Heads,
    matrix: Matrix,
    shared: Arguments,
    edges: Arguments,
    operands: Arguments,
    nodes: Arguments,
    sums: Argument,
) -> None:
    width = 4 * shape.heads * shape.parts
    pieces = rows_of.pieces(target, matrix, width, torch.float32)
    scratch = (pieces.values.data_ptr(), pieces.cut_rows.data_ptr())
    kernel = Kernel(f"gat_bwd_dst_{load.suffix}", _BY_DESTINATION)
    grid = (matrix.blocks, shape.tiles)
    launch(target, kernel, grid, THREADS, *matrix, *shared, *edges, *operands, *nodes, sums, *scratch)
    rows_of.join(target, JOIN_SUMS[False], matrix, width, None, None, width, *scratch, *Output(sums).arguments)


def _by_source(
    target: Target,
    load: _Load,
    shape: _Heads,
    matrix: Matrix,
    shared: Arguments,
    edges: Arguments,
    operands: Arguments,
    nodes: Arguments,
    results: tuple[Argument, Argument, Argument],
) -> None:
    d_u, d_el, absmax = results
    width, el_width = shape.heads * shape.width, shape.heads * shape.parts
    pieces = rows_of.pieces(target, matrix, width, torch.float32)
    el_pieces = target.empty((2 * matrix.shares, el_width), torch.float32)
    values, el_values, cut_rows = pieces.values.data_ptr(), el_pieces.data_ptr(), pieces.cut_rows.data_ptr()
    kernel = Kernel(f"gat_bwd_src_{load.suffix}", _BY_SOURCE)
    grid = (matrix.blocks, shape.tiles)
    scratch = (values, el_values, cut_rows)
    launch(target, kernel, grid, THREADS, *matrix, *shared, *edges, *operands, *nodes, *scratch, *results)
    if width:
        rows_of.join(
            target, JOIN_SUMS[False], matrix, width, None, None, width, values, cut_rows, *Output(d_u, absmax).arguments
        )
    rows_of.join(
        target, JOIN_SUMS[False], matrix, el_width, None, None, el_width, el_values, cut_rows, *Output(d_el).arguments
    )


def _load(width: int, *features: tuple[Argument, Argument]) -> _Load:
    """The widest way in which a lane may read all features, (address, scale) each."""
    types = {scale is not None for _, scale in features}
    if width and len(types) == 1:
        for load in _LOADS[types.pop()]:
            if width % load.values == 0 and all(address % load.alignment == 0 for address, _ in features):
                return load
    return _ANY


def _shape(heads: int, width: int, load: _Load) -> _Heads:
    chunks = max(blocks_for(width, load.values), 1)
    parts = blocks_for(chunks, WARP)
    chunks_of_part = blocks_for(chunks, parts)
    tiles = blocks_for(heads, WARP // chunks_of_part)
    heads_of_tile = blocks_for(heads, tiles)
    return _Heads(
        heads,
        width,
        lanes=rows_of.power_of_two(heads_of_tile * chunks_of_part),
        heads_of_tile=heads_of_tile,
        parts=parts,
        chunks_of_part=chunks_of_part,
    )


LAUNCHERS = (gat, gat_bwd)
