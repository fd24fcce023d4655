"""Launches the kernels of csrc/cuda/edge_softmax.cu."""

from __future__ import annotations

import torch

from gqc.runtime.cuda.target import Argument, Kernel, Target, blocks_for, launch, strided_blocks

_THREADS = 256
_BLOCKS_OF_A_MULTIPROCESSOR = 4

# A row may be this many times what its lanes keep in registers before blocks take it over.
_READ_AGAIN = 4

_STAGES = (0, 1)  # kParts and kRows; no row has several parts where all edges fit one
_ROWS = "iippiippi"
_CELLS = {"edge_softmax": {4: 4, 1: 4}, "edge_softmax_bwd": {4: 2, 1: 4}}  # kCells, by the heads of a pack
_FIELDS = {"edge_softmax": 2, "edge_softmax_bwd": 1}  # kFields


def edge_softmax(
    target: Target,
    is_int64: bool,
    rows: int,
    edges: int,
    indptr: Argument,
    eids: Argument,
    logits: Argument,
    heads: int,
    out: Argument,
) -> None:
    """Compute ``out[e, h]``, the softmax of ``logits[e, h]`` over the edges e of each row."""
    _launch(target, "edge_softmax", is_int64, rows, edges, indptr, eids, heads, (logits, out))


def edge_softmax_bwd(
    target: Target,
    is_int64: bool,
    rows: int,
    edges: int,
    indptr: Argument,
    eids: Argument,
    out: Argument,
    grad: Argument,
    heads: int,
    result: Argument,
) -> None:
    """Compute ``result[e, h]``, the gradient of the logits from the softmax and its gradient."""
    _launch(target, "edge_softmax_bwd", is_int64, rows, edges, indptr, eids, heads, (out, grad, result))


def _launch(
    target: Target,
    name: str,
    is_int64: bool,
    rows: int,
    edges: int,
    indptr: Argument,
    eids: Argument,
    heads: int,
    values: tuple[Argument, ...],
) -> None:
    pack = 4 if heads % 4 == 0 and all(address % 16 == 0 for address in values) else 1
    cells = _CELLS[name][pack]
    log_packs = min(5, (heads // pack - 1).bit_length())
    # A lane takes about two edges of a row of mean length: fewer lanes would read eids in shreds, more would idle.
    log_slots = min(5 - log_packs, (edges // (2 * rows)).bit_length())
    longest = _READ_AGAIN * cells << log_slots
    log_part = (cells * _THREADS >> log_packs).bit_length() - 1

    # Room for the parts of rows of more than `longest` edges, of which each has an unfilled one at most.
    room = (edges >> log_part) + edges // longest if edges > longest else 0
    num_parts = target.empty((1,), torch.int64).zero_() if room else None
    parts = target.empty((room, 2), torch.int64) if room else None
    listed = (None, None) if num_parts is None or parts is None else (num_parts.data_ptr(), parts.data_ptr())
    shared = (is_int64, rows, indptr, eids, heads, log_packs, *listed, log_part)

    blocks = blocks_for(rows << log_slots << log_packs, _THREADS)
    kernel = Kernel(f"{name}_short_by_{pack}", f"{_ROWS}ii" + "p" * len(values))
    launch(target, kernel, blocks, _THREADS, *shared, log_slots, longest, *values)
    if not room:
        return
    joined = target.empty((room, _FIELDS[name], heads), torch.float32)
    blocks = strided_blocks(target, room, 1, _BLOCKS_OF_A_MULTIPROCESSOR)
    kernel = Kernel(f"{name}_long_by_{pack}", f"{_ROWS}ip" + "p" * len(values))
    for stage in _STAGES if edges > 1 << log_part else _STAGES[:1]:
        launch(target, kernel, blocks, _THREADS, *shared, stage, joined.data_ptr(), *values)


LAUNCHERS = (edge_softmax, edge_softmax_bwd)
