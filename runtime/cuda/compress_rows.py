"""Launches the kernels of csrc/cuda/compress_rows.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Target, launch, of_each_type, strided_blocks

_THREADS = 256
_WARP = 32
_OF_LANE = 8  # elements that a lane takes at a time
_WIDE = 2048  # elements of a group from which on a block works on it

_COMPRESS = of_each_type("compress_rows", "piiiipiiippp")
_DECOMPRESS = of_each_type("decompress_rows", "pppiiiiiip")


def compress_rows(
    target: Target,
    x: Argument,
    dtype: int,
    rows: int,
    width: int,
    group: int,
    bits: int,
    seed: Argument,
    node: int,
    stats: int,
    packed: Argument,
    zero: Argument,
    spread: Argument,
) -> None:
    """Round groups of rows to few bits between their least and largest element, packed, with these two."""
    lanes = _lanes(group)
    arguments = (x, rows, width, group, bits, seed, node, stats, lanes, packed, zero, spread)
    launch(target, _COMPRESS[dtype], _grid(target, rows * -(-width // group), lanes), _THREADS, *arguments)


def decompress_rows(
    target: Target,
    packed: Argument,
    zero: Argument,
    spread: Argument,
    stats: int,
    rows: int,
    width: int,
    group: int,
    bits: int,
    dtype: int,
    out: Argument,
) -> None:
    """Write compressed rows as floats."""
    lanes = _lanes(group)
    arguments = (packed, zero, spread, stats, rows, width, group, bits, lanes, out)
    launch(target, _DECOMPRESS[dtype], _grid(target, rows * -(-width // group), lanes), _THREADS, *arguments)


def _lanes(group: int) -> int:
    """Threads that share a group of a row."""
    if group > _WIDE:
        return _THREADS
    return min(_WARP, 1 << (-(-group // _OF_LANE) - 1).bit_length())


def _grid(target: Target, groups: int, lanes: int) -> int:
    return strided_blocks(target, groups * lanes, _THREADS)


LAUNCHERS = (compress_rows, decompress_rows)
